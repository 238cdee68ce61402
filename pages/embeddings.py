"""Embeddings: how a token's input vector is made, and what becomes of it."""

import streamlit as st

from bert_probe.analyses.vectors.embedding import Embedding
from bert_probe.analyses.vectors.hidden_states import HiddenStates
from bert_probe.analyses.vectors.pooler import Pooler
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.vectors import numbers, strips
from bert_probe.views.scale import Scale

PARTS = {"input": "Input embedding", "vectors": "Token vectors", "pooler": "CLS and pooler"}

Export = tuple[Result, str]
"""What is shown, and the name of its files."""


def proof(difference: float, what: str) -> None:
    """The largest difference to the model, shown and not assumed."""
    verdict = "exactly the model's own numbers" if difference == 0 else f"largest difference {difference:.1e}"
    st.markdown(f"**Check:** {what}: {verdict}.")


def input_embedding(trace: Trace) -> Export:
    """Word + position + segment → sum → LayerNorm of a chosen token."""
    anatomy = Embedding().of(trace)
    st.markdown("Choose a token")
    usual = anatomy.chosen
    first = state.token("embedding_token", trace.tokens, usual)
    clicked = blocks.token_strip(trace, f"anatomy_{len(trace.tokens)}", "Tokens to choose from", first)
    position = first if clicked is None else clicked
    state.remember("embedding_token", None if position == usual else str(position))
    token = trace.tokens[position]
    names = {
        "word": f"word · id {token.id}",
        "position": f"+ position · row {position}",
        "segment": f"+ segment · {'AB'[token.segment]}",
        "sum": "= sum",
    }
    strips(
        [rows[position] for rows in anatomy.summed.values()],
        [names[name] for name in anatomy.summed],
        Scale.around_zero(*anatomy.summed.values()),
        "embedding-sum",
        f"How the input vector of token {position} is summed",
    )
    if anatomy.normalised is not None:
        strips(
            [anatomy.normalised[position]],
            ["LayerNorm of the sum"],
            Scale.around_zero(anatomy.normalised),
            "embedding-norm",
            f"The input vector of token {position} after LayerNorm",
        )
    proof(anatomy.difference, f"all {len(trace.tokens)} tokens against the model's embedding module")
    for sentence in anatomy.absent:
        st.caption(state.plain(sentence))
    shown = anatomy.showing(token=position)
    numbers(shown.frame())
    blocks.caveat(
        "Each row is one vector, a colour for each of its dimensions. In BERT all three tables are learned, "
        "positions and segments too. LayerNorm shifts and rescales each vector, so it has a range of its own."
    )
    return shown, f"embedding-token{position}"


def token_vectors(trace: Trace) -> Export:
    """All token vectors after a layer."""
    with st.container(width=320):
        layer = state.layer("vector_layer", 0, trace.layers, "0 is the output of the embeddings.")
    vectors = HiddenStates(layer).of(trace)
    strips(
        vectors.values,
        blocks.named(trace.tokens),
        Scale.around_zero(*trace.states),
        "token-vectors",
        f"Token vectors after layer {layer}" if layer else "Token vectors at the output of the embeddings",
        "token",
    )
    numbers(vectors.frame())
    blocks.caveat(
        "A row for each token, a column for each dimension. The range is the same for all layers of this "
        "text. Single dimensions rarely mean anything by themselves; vertical lines are dimensions that are "
        "large for every token."
    )
    return vectors, f"embeddings-layer{layer}"


def cls_and_pooler(trace: Trace) -> Export:
    """The [CLS] vector and the pooler, computed again."""
    if trace.cls is None:
        raise UnavailableError("This model's input does not begin with a [CLS] token.")
    shown: Result
    try:
        replay = Pooler().of(trace)
    except UnavailableError as error:
        st.text(str(error))
        shown = HiddenStates(which="cls").of(trace)
        strips(shown.values, shown.names, Scale.around_zero(shown.values), "cls", "The [CLS] vector")
    else:
        shown = replay
        strips(
            [replay.cls, replay.linear],
            [f"{trace.tokens[0]}, last layer", "W · CLS + b"],
            Scale.around_zero(replay.cls, replay.linear),
            "cls-linear",
            "The [CLS] vector and the pooler's linear step",
        )
        strips(
            [replay.replay, replay.model_output],
            ["tanh(W · CLS + b)", "the model's pooler"],
            Scale.around_zero(replay.model_output),
            "pooler",
            "The pooler's output, computed again and as the model gives it",
        )
        proof(replay.difference, "tanh(W · CLS + b) against the model's pooler output")
    numbers(shown.frame())
    blocks.caveat(
        "The pooler was trained for BERT's next-sentence task (Devlin et al. 2019). Neither it nor [CLS] is "
        "a good sentence vector unless the model was trained to make it one (Reimers and Gurevych 2019)."
    )
    return shown, "cls-pooler"


blocks.heading(
    "Embeddings",
    "Every token enters the model as a vector, a list of numbers: the sum of what was learned for its word, "
    "its position and its segment. Each layer turns it into one that depends on the whole text.",
)
study = workbench.study()
with st.container(horizontal=True, gap="medium"):
    part = state.pick("part", "Part", PARTS, "input")
    trace = workbench.chosen_text(study)
    st.space("stretch")
    menu = st.container(width="content")
blocks.truncation_notice(trace)
draw = {"input": input_embedding, "vectors": token_vectors, "pooler": cls_and_pooler}[part]
result, name = draw(trace)
with menu:
    export(result, name)
