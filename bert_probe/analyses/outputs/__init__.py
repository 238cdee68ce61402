"""Analyses of the predictions of task heads."""
