"""Questions about tokens and the vocabulary."""
