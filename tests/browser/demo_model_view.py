"""A page with the model view. The URL parameters `layers`, `heads` and `tokens` set its size."""

import streamlit as st

from bert_probe.analyses.attention.attention import make_thumbnails
from bert_probe.analyses.attention.heads import Heads
from bert_probe.model.trace import Trace
from bert_probe.ui.components import model_view
from bert_probe.views.model_view import HeadThumbnail, payload
from tests.helpers.traces import HOSTILE_TOKENS, random_trace

MEASURES = {"Previous": "previous", "Entropy": "entropy_bits", "Unlike its layer": "difference_from_mean"}


def demo_trace(layers: int, heads: int, count: int) -> Trace:
    return random_trace([f"token{i}" for i in range(count)], layers, heads)


def labels_of(layers: int, heads: int) -> list[list[str]]:
    """Return a label for every third head, and a hostile one for the last head."""
    labels = [
        ["previous token" if (layer + head) % 3 == 0 else "" for head in range(heads)]
        for layer in range(layers)
    ]
    labels[-1][-1] = HOSTILE_TOKENS[0]
    return labels


def choose(head: HeadThumbnail) -> None:
    """Select a head in the widget above the picture, as the page of the app does."""
    st.session_state["layer"] = head.layer + 1


def main() -> None:
    number = {
        name: int(st.query_params.get(name, minimum))
        for name, minimum in (("layers", 6), ("heads", 12), ("tokens", 20))
    }
    st.set_page_config(layout="wide")
    trace = demo_trace(number["layers"], number["heads"], number["tokens"])
    values = Heads().of(trace).values
    st.number_input("Layer", 1, trace.layers, key="layer")
    data = payload(
        make_thumbnails(trace),
        labels_of(trace.layers, trace.heads),
        {name: values[measure] for name, measure in MEASURES.items()},
        key="demo",
        caption="Attention of all heads",
        source="“a\ntext\x0b” · a model",
    )
    opened = model_view(data, (trace.layers, trace.heads), key="demo", on_open=choose)
    st.write(f"opened: {opened}")
    st.button("Again")


if __name__ == "__main__":
    main()
