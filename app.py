"""The entry point of the server: `streamlit run app.py`, or `uvicorn app:app` from this folder."""

import streamlit as st

from bert_probe.server import asgi

asgi.apply_settings()
# Streamlit detects the app by parsing this line, so the call must have this form.
app = st.App(**asgi.app_arguments())
