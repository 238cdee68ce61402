"""Questions that compare two texts or two models."""
