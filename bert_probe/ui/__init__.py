"""The Streamlit pages of BERT Probe, which read widgets, call the library and draw results."""
