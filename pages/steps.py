"""Steps: why one attention weight is what it is, from q and k to what the head gives."""

from collections.abc import Sequence
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.attention.head_outputs import head_outputs
from bert_probe.analyses.attention.steps import AttentionSteps, AttentionStepsResult, last_word
from bert_probe.core import files
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.vectors import numbers
from bert_probe.views.matrix import Heatmap
from bert_probe.views.steps import of_steps


def controls(trace: Trace) -> tuple[int, int]:
    """Layer and head, counted from 1."""
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = state.layer(
            "layer", 1, trace.layers, "Each layer reads the vectors that the one before made."
        )
    with right:
        return layer, state.single_head("head", trace.heads)


def choose(trace: Trace, key: str, label: str, default: int) -> int:
    """Position of a token, chosen by clicking and kept in the address."""
    st.markdown(f"**{label}**")
    first = state.token(key, trace.tokens, default)
    chosen = blocks.token_strip(trace, f"steps_{key}_{len(trace.tokens)}", label, first)
    position = first if chosen is None else chosen
    state.remember(key, None if position == default else str(position))
    return position


def name(token: Token) -> str:
    """A token in a sentence: what it says, and where it stands."""
    return f"**{state.plain(token.display)}** ({token.position})"


def number(value: float) -> str:
    """Four decimals; the score of a masked key as a sign."""
    return f"{value:.4f}".replace("inf", "∞").replace("-", "−")


def said(title: str, sentences: Sequence[str], label: str, value: str, how: str) -> DeltaGenerator:
    """A step in words and as a number; its picture goes into what comes back."""
    st.header(title, anchor=False)
    words, picture = st.columns([2, 5], gap="large")
    with words:
        st.markdown(" ".join(sentence for sentence in sentences if sentence))
        with st.container(gap="xxsmall"):
            st.metric(label, value)
            st.caption(how)
    return picture


def query_and_key(steps: AttentionStepsResult, key: int, drawn: dict[str, Heatmap]) -> None:
    """Steps 1 and 2: q and k, and their product."""
    query_name, key_name = name(steps.tokens[steps.query]), name(steps.tokens[key])
    heads = ", ".join(str(head + 1) for head in steps.sharing)
    notes = [
        "This architecture turns q and k by the positions of their tokens (Su et al. 2021); they are shown "
        "after that turn."
        if steps.rotary
        else "",
        f"Keys are grouped: heads {heads} share these keys and values." if len(steps.sharing) > 1 else "",
    ]
    with said(
        "1 · Query and key",
        [
            f"{query_name} brings a query vector q, and {key_name} a key vector k. Both are made from the "
            "tokens' vectors by matrices that the model has learned.",
            *notes,
        ],
        "Numbers in each",
        str(len(steps.q)),
        "the size of this head",
    ):
        heatmap(drawn["qk"], key="steps-qk")
    with said(
        "2 · Multiply and add",
        ["Number by number, q times k. The sum of the products is large where both point the same way."],
        "q · k",
        number(steps.dot_products[key]),
        "the sum of all cells",
    ):
        heatmap(drawn["products"], key="steps-products")


def scale_and_mask(steps: AttentionStepsResult, key: int, drawn: dict[str, Heatmap]) -> None:
    """Steps 3 and 4: the scaling and the mask, for all keys."""
    with said(
        "3 · Scale",
        [
            "Each sum is multiplied by the same factor, lest long vectors make the softmax all or nothing. "
            "In the picture: this for every key of the text."
        ],
        "q · k × scaling",
        number(steps.scaled[key]),
        f"{number(steps.dot_products[key])} × {number(steps.scaling)}",
    ):
        heatmap(drawn["scaled"], key="steps-scaled")
    with said(
        "4 · Mask",
        [masking(steps)],
        "Score",
        number(steps.scores[key]),
        f"{number(steps.scaled[key])} + {number(steps.mask[key])}",
    ):
        heatmap(drawn["scores"], key="steps-scores")


def masking(steps: AttentionStepsResult) -> str:
    """What is added to the scores of this query."""
    sentences = ["This layer sees only a window around the query."] if steps.local else []
    if steps.forbidden:
        sentences.append(
            f"{steps.forbidden} of {len(steps.tokens)} keys may not be attended to: −∞ is added to them, "
            "hatched in the picture, so that their weight becomes exactly 0."
        )
    else:
        sentences.append(f"No key is forbidden: this query may attend to all {len(steps.tokens)}.")
    sentences.append(
        "The model adds a bias of its own to the scores." if steps.biased else "Nothing else is added."
    )
    return " ".join(sentences)


def weight_and_value(steps: AttentionStepsResult, key: int, drawn: dict[str, Heatmap]) -> None:
    """Steps 5 and 6: the softmax, and the value with its weight."""
    key_name = name(steps.tokens[key])
    with said(
        "5 · Softmax",
        [
            "e to the power of each score, divided by the sum of these over all keys: scores become weights "
            "from 0 to 1 that sum to 1."
        ],
        "Attention weight",
        number(steps.weights[key]),
        f"{number(steps.exponentials[key])} ÷ {number(steps.exponential_sum)}, after the largest score is "
        "taken from each, which changes no weight",
    ):
        heatmap(drawn["weights"], key="steps-weights")
    with said(
        "6 · Weight the value",
        [
            f"What {key_name} passes on is its value vector v, made by a third matrix. It is multiplied by "
            "the weight."
        ],
        "Length of weight × v",
        number(steps.weighted_lengths[key]),
        f"{number(steps.weights[key])} × {number(steps.value_lengths[key])}, the length of v",
    ):
        heatmap(drawn["value"], key="steps-value")


def add_up(steps: AttentionStepsResult, drawn: dict[str, Heatmap]) -> None:
    """Step 7: the sum over all keys."""
    query_name = name(steps.tokens[steps.query])
    with said(
        "7 · Add up",
        [
            f"The same for every key, and all of it added: this is what the head gives for {query_name}. "
            "In the picture the keys come in the order of their weights."
        ],
        "Length of the output",
        number(steps.output_length),
        f"the sum of {len(steps.tokens)} weighted values",
    ):
        heatmap(drawn["sum"], key="steps-sum")


def check(steps: AttentionStepsResult, dtype: str, drawn: dict[str, Heatmap]) -> None:
    """Our output beside the one that the model itself computed."""
    with (
        st.container(border=True, key="check"),
        said(
            "Check: the model itself",
            [
                "The model ran this text once more, and its own attention kernel returned the upper row for "
                "this head and query. The lower one is step 7."
            ],
            "Largest absolute difference",
            f"{steps.difference:.1e}",
            f"At this size, two neighbouring {dtype} numbers are {steps.spacing:.1e} apart.",
        ),
    ):
        heatmap(drawn["check"], key="steps-check")


def exports(steps: AttentionStepsResult, key: int) -> None:
    """The table of all keys; and as further files the vectors of the chosen one."""
    place = steps.question
    stem = f"steps-layer{place.layer + 1}-head{place.head + 1}-query{steps.query}"
    vectors = steps.showing(key=key).table()
    export(
        steps,
        stem,
        [
            (
                f"Vectors of key {key}, {form.upper()}",
                f"{stem}-key{key}.{form}",
                partial(files.to_bytes, vectors, form),
            )
            for form in files.FORMATS
        ],
    )


blocks.heading(
    "Steps",
    "Why is an attention weight what it is? One token looks at another through one head, and every step of "
    "the calculation is laid open, from their vectors to what the head gives.",
)
study = workbench.study()
with st.container(horizontal=True, gap="medium"):
    trace = workbench.chosen_text(study)
    st.space("stretch")
    menu = st.container(width="content")
blocks.truncation_notice(trace)
outputs = shared_cache.answers.of(head_outputs, trace)
layer, head = controls(trace)
left, right = st.columns(2, gap="large")
with left:
    query = choose(trace, "query", "This token looks (query)", last_word(trace))
steps = AttentionSteps(layer - 1, head - 1, query).of(trace, outputs)
with right:
    key = choose(trace, "key", "at this one (key)", steps.strongest)
with menu:
    exports(steps, key)
answer = (
    f"In layer {layer}, head {head}, {name(trace.tokens[query])} gives {name(trace.tokens[key])} a weight of "
    f"**{number(steps.weights[key])}**"
)
if key == steps.strongest:
    st.markdown(f"{answer}, the largest of its weights.")
else:
    largest, most = name(trace.tokens[steps.strongest]), number(steps.weights[steps.strongest])
    st.markdown(f"{answer}. Its largest weight, {most}, goes to {largest}.")
with st.container(key="steps"):
    drawn = of_steps(steps, key)
    query_and_key(steps, key, drawn)
    scale_and_mask(steps, key, drawn)
    weight_and_value(steps, key, drawn)
    add_up(steps, drawn)
    check(steps, study.checkpoint.description.dtype, drawn)
numbers(steps.frame(), "Numbers: all keys")
numbers(steps.vectors(key), "Numbers: the vectors")
blocks.caveat(
    "Pictures of vectors have a range each, stated beneath, which stays the same while you change the key. "
    "Single numbers of q, k and v rarely mean anything by themselves, and a weight says where a head reads, "
    "not how much the model's output depends on it. Before it goes on, the head's output passes through the "
    "layer's output projection, together with those of the other heads."
)
