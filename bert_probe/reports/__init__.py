"""Views as files, and reports of several: made, read back, and recomputed."""
