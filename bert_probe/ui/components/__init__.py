"""Streamlit components built from `js/`: matrix, token strip, head view, model view, layer map, toolbar."""
