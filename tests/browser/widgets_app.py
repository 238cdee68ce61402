"""The app's server around a page of everything the policy must let work, for tests."""

from pathlib import Path

import streamlit as st

from bert_probe.web import serve

app = st.App(
    Path(__file__).with_name("widgets_page.py"), routes=serve.routes(), middleware=serve.middleware()
)
