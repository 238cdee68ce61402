"""Comparisons of two texts or of two models."""
