"""Analyze many sentences: run the model once, store its measurements and vectors, then query the store."""
