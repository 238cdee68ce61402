"""Analyze many sentences: run the model once, store its measures and vectors, then query the store."""
