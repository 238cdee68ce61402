"""Words, and which of two texts are the same; sentences out of files."""
