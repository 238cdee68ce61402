"""Corpora: what a model does with a great many texts, written down to be asked again and again."""
