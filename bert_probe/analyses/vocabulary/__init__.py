"""Analyses of tokenization and of the vocabulary."""
