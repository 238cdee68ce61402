"""The app's server around one page of frames, for tests."""

from pathlib import Path

import streamlit as st

from bert_probe.web import serve

app = st.App(Path(__file__).with_name("frames_page.py"), routes=serve.routes(), middleware=serve.middleware())
