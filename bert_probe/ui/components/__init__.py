"""Streamlit components from `js/`: matrix, token strip, head view, model view, layer map and toolbar."""
