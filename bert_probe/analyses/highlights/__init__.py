"""Highlights of a text: unusual attention, vectors and tokens, ranked against reference sentences."""
