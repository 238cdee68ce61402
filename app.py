"""The entry point of the server: `streamlit run app.py`, or `uvicorn app:app` from this folder."""

import streamlit as st

from bert_probe.server import asgi

asgi.apply_settings()
# Streamlit detects the app by parsing the source of this line, so keep the form `app = st.App(…)`.
app = st.App(**asgi.app_arguments())
