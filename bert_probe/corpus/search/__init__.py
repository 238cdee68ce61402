"""Search for the contexts of a corpus that are most similar to a word in context."""
