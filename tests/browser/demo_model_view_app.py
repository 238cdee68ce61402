"""The app's server around the model view alone, for tests."""

from pathlib import Path

import streamlit as st

from bert_probe.web import serve

app = st.App(
    Path(__file__).with_name("demo_model_view.py"),
    routes=serve.routes(),
    middleware=serve.middleware(),
    lifespan=serve.lifespan,
)
