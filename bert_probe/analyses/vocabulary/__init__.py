"""Questions about tokenization and the vocabulary."""
