"""Analyses of the predictions of output heads."""
