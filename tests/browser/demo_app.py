"""The app's server around the demo pages of the tests; ?demo= names the page."""

from pathlib import Path

import streamlit as st

from bert_probe.web import serve

app = st.App(
    Path(__file__).with_name("demo_page.py"),
    routes=serve.routes(),
    middleware=serve.middleware(),
    lifespan=serve.lifespan,
)
