"""Texts: words, alignment of two texts, and files of sentences, labeled texts and tagged sentences."""
