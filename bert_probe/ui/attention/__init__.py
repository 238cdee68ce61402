"""The views of the attention page, one module each."""
