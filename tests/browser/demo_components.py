"""A page with the components in the states that are tested; the URL parameter ``show`` selects one."""

import numpy as np
import streamlit as st

from bert_probe.ui.components import matrix, strip
from bert_probe.views.matrix import Cell
from bert_probe.views.palette import Scale
from bert_probe.views.text import StripToken

TEXT = """[CLS] the bank raised interest rates while fishermen on the river bank left ground ##ing lines in
the mud and the electro ##encephal ##ography report said nothing about it [SEP]"""
WORDS = TEXT.split()
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


def tokens(count: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(count)]


def attention(count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    scores = rng.normal(0, 1.5, (count, count))
    scores[np.arange(1, count), np.arange(count - 1)] += 4
    scores[:, 0] += 2.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def attention_matrix(count: int, curve: str = "linear", caption: str | None = None) -> Cell | None:
    return matrix(
        attention(count),
        tokens(count),
        tokens(count),
        key=f"attention{count}",
        scale=Scale("sequential", 0.0, 1.0, curve),
        row_axis="query",
        column_axis="key",
        value_name="attention weight",
        caption=caption or f"Layer 3, head 5: attention of {count} tokens",
        row_positions=range(count),
        column_positions=range(count),
        file_name=f"attention-{count}",
    )


def vectors() -> Cell | None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 0.35, (20, 384))
    values[:, 223] = 1.4
    return matrix(
        values,
        tokens(20),
        [str(i) for i in range(1, 385)],
        key="vectors",
        scale=Scale("diverging", -1.0, 1.0),
        row_axis="token",
        column_axis="dimension",
        value_name="component",
        caption="Hidden states after layer 6",
        square=False,
        row_positions=range(20),
    )


def difference(count: int = 12) -> Cell | None:
    values = attention(count) - attention(count)[::-1]
    values[2, 3] = values[2, 4] = np.nan
    return matrix(
        values,
        tokens(count),
        tokens(count),
        key="difference",
        scale=Scale("diverging", -0.5, 0.5, "sqrt"),
        row_axis="query",
        column_axis="key",
        value_name="difference of weights",
        caption="Second text minus first",
        row_positions=range(count),
        column_positions=range(count),
    )


def hostile() -> Cell | None:
    labels = [
        HOSTILE,
        "",
        " ",
        "a\nb",
        "\u202eright-to-left",
        "語" * 40,
        "Donaudampfschifffahrtsgesellschaft",
    ]
    return matrix(
        np.linspace(-0.2, 1.2, 49).reshape(7, 7),
        labels,
        labels,
        key="hostile",
        scale=Scale("sequential", 0.0, 1.0, "sqrt"),
        row_axis="query <b>",
        column_axis="key <b>",
        value_name=HOSTILE,
        caption=HOSTILE,
        row_positions=range(7),
        column_positions=range(7),
    )


def pieces(count: int) -> list[StripToken]:
    texts = tokens(count)
    return [
        StripToken(
            text.removeprefix("##"),
            i,
            int(i > count // 2),
            text.startswith("["),
            text.startswith("##"),
            f"id {2000 + i} · position {i} · characters {4 * i}–{4 * i + 3}",
        )
        for i, text in enumerate(texts)
    ]


show = st.query_params.get("show", "20")
st.set_page_config(layout="wide" if "wide" in st.query_params else "centered")
if show.isdigit():
    st.write(f"pinned: {attention_matrix(int(show), st.query_params.get('curve', 'linear'))}")
elif show == "strip":
    count = int(st.query_params.get("count", "40"))
    st.write(f"chosen: {strip(pieces(count), key='one', label='Tokens', selectable='one', selected=3)}")
    strip(pieces(30), key="none", label="Tokens to read")
    strip([StripToken(HOSTILE, 0, 0, False, False, HOSTILE)], key="hostile", label=HOSTILE)
else:
    shown_matrix = {"vectors": vectors, "difference": difference, "hostile": hostile}[show]
    st.write(f"pinned: {shown_matrix()}")
