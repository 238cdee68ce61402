"""A page with every element that loads code, images or files in the browser."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.server import asgi
from bert_probe.ui import state
from tests.helpers.pages import MARKDOWN

st.set_page_config(
    page_title="Widgets", page_icon=str(asgi.MAIN_SCRIPT.with_name("static") / "favicon.svg"), layout="wide"
)
st.title("A heading")
st.markdown(
    "Text with `code`, a formula $R_l = \\frac{1}{2}(A_l + I) R_{l-1}$ and :material/search: an icon."
)
st.button("Run", type="primary")
st.selectbox("Layer", [1, 2, 3])
st.slider("Head", 1, 12)
st.text_area("Text", "some text")
st.dataframe(pd.DataFrame({"token": ["a", "b"], "weight": [0.25, 0.75]}))
st.plotly_chart(go.Figure(go.Heatmap(z=np.eye(4))))
st.bar_chart({"one": [1, 2, 3]})
st.image(np.zeros((8, 8, 3), np.uint8))
uploaded = st.file_uploader("A file")
if uploaded is not None:
    st.text(f"Read {uploaded.getvalue().decode()}")
st.download_button("Download", "the file's text", "file.txt")
component = st.components.v2.component(
    "own",
    html="<p id='own'>waiting</p>",
    css="#own { color: var(--st-primary-color); }",
    js="""
    export default ({ data, parentElement }) => {
      parentElement.querySelector("#own").textContent = `bytes ${Array.from(data).join(" ")}`;
    };
    """,
)
component(data=bytes([1, 2, 3]))
with st.container(key="plain"):
    for text in MARKDOWN:
        st.caption(state.escape(text))
        st.selectbox(state.escape(text), ["a"])
with st.sidebar:
    st.header("Sidebar")
    st.metric("Parameters", "22.7 M")
