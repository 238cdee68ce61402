"""ASGI entry point: `streamlit run app.py`, or `uvicorn app:app` from this folder."""

import streamlit as st

from bert_probe.server import asgi

asgi.use_settings()
# Streamlit detects the app by this line, so the call has to stay here.
app = st.App(**asgi.parts())
