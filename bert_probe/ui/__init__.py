"""The Streamlit pages of BERT Probe: they read controls, call the library and draw."""
