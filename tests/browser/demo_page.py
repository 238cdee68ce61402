"""Runs the demo page selected in the URL, so that all demo pages share a server."""

import runpy
from pathlib import Path

import streamlit as st

DEMOS = {"demo_clicks", "demo_components", "demo_model_view", "frames_page", "widgets_page"}

demo = st.query_params["demo"]
if demo not in DEMOS:
    raise ValueError(f"demo must be one of {sorted(DEMOS)}, not {demo!r}")
runpy.run_path(str(Path(__file__).with_name(f"{demo}.py")), run_name="__main__")
