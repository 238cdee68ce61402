"""The app's server with the demo pages of the tests, which are selected with the URL parameter ``demo``."""

from pathlib import Path

import streamlit as st

from bert_probe.server import asgi

app = st.App(
    Path(__file__).with_name("demo_page.py"),
    routes=asgi.routes(),
    middleware=asgi.middleware(),
    lifespan=asgi.lifespan,
)
