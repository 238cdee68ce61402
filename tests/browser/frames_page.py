"""A page with a BertViz frame of a handwritten trace; the URL selects the frame."""

import streamlit as st

from bert_probe.server import bertviz_frames
from tests.helpers.traces import HOSTILE_TOKENS, random_trace

st.set_page_config(page_title="Frames", layout="wide")
query = st.query_params
dark = "dark" in query
if "hostile" in query:
    trace = random_trace(HOSTILE_TOKENS)
else:
    # The token "3" must not change when the frame counts layers from 1. Another token is long, and another
    # contains spaces.
    tokens = ["[CLS]", "3", "unbelievably-long-token-of-text", " a  b ", "[SEP]", "x", "[SEP]"]
    trace = random_trace(tokens, layers=5, heads=12, second=5 if "pair" in query else None)
if "model" in query:
    frame = bertviz_frames.model_view(trace, dark)
else:
    heads = [int(head) for head in query.get_all("head")] or None
    frame = bertviz_frames.head_view(trace, int(query.get("layer", 0)), heads, dark)
st.title("Frames")
st.iframe(frame.url, height=frame.height, alt=frame.title)
st.caption(frame.caption)
