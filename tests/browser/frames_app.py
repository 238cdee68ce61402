"""The app's server around one page of frames, for tests."""

from pathlib import Path

import streamlit as st

from bert_probe.ui import server

app = st.App(
    Path(__file__).with_name("frames_page.py"), routes=server.routes(), middleware=server.middleware()
)
