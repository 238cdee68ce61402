"""The server's entry: `streamlit run app.py`, or `uvicorn app:app` from this folder."""

import streamlit as st

from bert_probe.server import asgi

asgi.use_settings()
# Streamlit finds the app by reading this line, so the call must stand here as it is.
app = st.App(**asgi.parts())
