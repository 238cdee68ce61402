"""Embeddings: how a token's input vector is made, and what becomes of it."""

import numpy as np
import pandas as pd
import streamlit as st

import bert_probe
from bert_probe.model.trace import Array, Trace
from bert_probe.web import blocks, figures, state, workbench
from bert_probe.web.components.matrix import Scale, matrix

Export = tuple[pd.DataFrame, str, str, str]
"""A table, its file name, and the Python and shell lines that make it."""

PARTS = {"input": "Input embedding", "vectors": "Token vectors", "pooler": "CLS and pooler"}


def picture(
    values: Array, rows: list[str], scale: Scale, key: str, caption: str, row_axis: str = "step"
) -> None:
    """Vectors as strips of colour."""
    matrix(
        values,
        rows,
        [str(dimension) for dimension in range(values.shape[1])],
        key=key,
        scale=scale,
        row_axis=row_axis,
        column_axis="dimension",
        value_name="value",
        caption=caption,
        square=False,
        file_name=key,
    )


def numbers(frame: pd.DataFrame) -> None:
    """The same vectors as numbers."""
    with st.expander("Numbers"):
        st.dataframe(
            frame.reset_index(),
            hide_index=True,
            width="stretch",
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in frame.columns},
        )


def proof(difference: float, what: str) -> None:
    """The largest difference to the model, shown and not assumed."""
    verdict = "exactly the model's own numbers" if difference == 0 else f"largest difference {difference:.1e}"
    st.markdown(f"**Check:** {what}: {verdict}.")


def input_embedding(study: workbench.Study, trace: Trace) -> Export:
    """Word + position + segment → sum → LayerNorm of a chosen token."""
    anatomy = bert_probe.embedding_anatomy(study.checkpoint, trace)
    first = next((token.position for token in trace.tokens if not token.special), 0)
    st.markdown("Choose a token")
    position = blocks.token_strip(trace, f"anatomy_{len(trace.tokens)}", "Tokens to choose from", first)
    token = trace.tokens[first if position is None else position]
    steps = {name: rows[token.position] for name, rows in anatomy.parts.items()}
    names = {
        "word": f"word · id {token.id}",
        "position": f"+ position · row {token.position}",
        "segment": f"+ segment · {'AB'[token.segment]}",
        "sum": "= sum",
    }
    added = [name for name in steps if name != "LayerNorm"]
    added_rows = [anatomy.parts[name] for name in added]
    picture(
        np.stack([steps[name] for name in added]),
        [names[name] for name in added],
        figures.symmetric_scale(*added_rows),
        "embedding-sum",
        f"How the input vector of token {token.position} is summed",
    )
    if "LayerNorm" in steps:
        assert anatomy.normalised is not None
        picture(
            steps["LayerNorm"][None],
            ["LayerNorm of the sum"],
            figures.symmetric_scale(anatomy.normalised),
            "embedding-norm",
            f"The input vector of token {token.position} after LayerNorm",
        )
    proof(anatomy.difference, f"all {len(trace.tokens)} tokens against the model's embedding module")
    for sentence in anatomy.absent:
        st.caption(state.plain(sentence))
    frame = bert_probe.anatomy_table(anatomy, token.position)
    numbers(frame)
    blocks.caveat(
        "Each row is one vector, a colour for each of its dimensions. In BERT all three tables are learned, "
        "positions and segments too. LayerNorm shifts and rescales each vector, so it has a range of its own."
    )
    return (
        frame,
        f"embedding-token{token.position}",
        blocks.python_code(
            study.request,
            blocks.trace_code(study.request, trace),
            "anatomy = bert_probe.embedding_anatomy(checkpoint, trace)",
            f"bert_probe.anatomy_table(anatomy, {token.position})",
        ),
        blocks.command_line(
            study.request,
            "embeddings",
            *("--layer", "0"),
            trace=trace,
            note="The command line gives what comes out, for all tokens:",
        ),
    )


def token_vectors(study: workbench.Study, trace: Trace) -> Export:
    """All token vectors after a layer."""
    with st.container(width=320):
        layer = state.layer("vector_layer", 0, trace.layers, "0 is the output of the embeddings.")
    vectors = trace.vectors(layer)
    picture(
        vectors,
        [f"{token.position} {token.display}" for token in trace.tokens],
        figures.symmetric_scale(*trace.states),
        "token-vectors",
        f"Token vectors after layer {layer}" if layer else "Token vectors at the output of the embeddings",
        "token",
    )
    frame = bert_probe.embeddings_table(trace, layer)
    numbers(frame)
    blocks.caveat(
        "A row for each token, a column for each dimension. The range is the same for all layers of this "
        "text. Single dimensions rarely mean anything by themselves; vertical lines are dimensions that are "
        "large for every token."
    )
    return (
        frame,
        f"embeddings-layer{layer}",
        blocks.python_code(
            study.request,
            blocks.trace_code(study.request, trace),
            f"bert_probe.embeddings_table(trace, layer={layer})",
        ),
        blocks.command_line(study.request, "embeddings", "--layer", str(layer), trace=trace),
    )


def cls_and_pooler(study: workbench.Study, trace: Trace) -> Export:
    """The [CLS] vector and the pooler, computed again."""
    if trace.cls is None:
        raise bert_probe.UnavailableError("This model's input does not begin with a [CLS] token.")
    code = [blocks.trace_code(study.request, trace)]
    try:
        replay = bert_probe.pooler_replay(study.checkpoint, trace)
    except bert_probe.UnavailableError as error:
        st.text(str(error))
        picture(
            trace.cls[None],
            [str(trace.tokens[0])],
            figures.symmetric_scale(trace.cls),
            "cls",
            "The [CLS] vector",
        )
        frame = bert_probe.embeddings_table(trace, vectors="cls")
        code.append('bert_probe.embeddings_table(trace, vectors="cls")')
        command = blocks.command_line(study.request, "embeddings", "--vectors", "cls", trace=trace)
    else:
        cls = f"{trace.tokens[0]}, last layer"
        picture(
            np.stack([replay.cls, replay.linear]),
            [cls, "W · CLS + b"],
            figures.symmetric_scale(replay.cls, replay.linear),
            "cls-linear",
            "The [CLS] vector and the pooler's linear step",
        )
        picture(
            np.stack([replay.replay, replay.model_output]),
            ["tanh(W · CLS + b)", "the model's pooler"],
            figures.symmetric_scale(replay.model_output),
            "pooler",
            "The pooler's output, computed again and as the model gives it",
        )
        proof(replay.difference, "tanh(W · CLS + b) against the model's pooler output")
        frame = bert_probe.results.tables.pooler_table(replay, trace)
        code.append("replay = bert_probe.pooler_replay(checkpoint, trace)")
        code.append("bert_probe.pooler_table(replay, trace)")
        note = "The command line gives the pooler's output, without the steps:"
        command = blocks.command_line(
            study.request, "embeddings", "--vectors", "pooler", trace=trace, note=note
        )
    numbers(frame)
    blocks.caveat(
        "The pooler was trained for BERT's next-sentence task (Devlin et al. 2019). Neither it nor [CLS] is "
        "a good sentence vector unless the model was trained to make it one (Reimers and Gurevych 2019)."
    )
    return frame, "cls-pooler", blocks.python_code(study.request, *code), command


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
    export = st.container(width="content")
blocks.truncation_notice(trace)
draw = {"input": input_embedding, "vectors": token_vectors, "pooler": cls_and_pooler}[part]
exported = draw(study, trace)
with export:
    blocks.exports(*exported)
