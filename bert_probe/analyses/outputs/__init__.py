"""Analyses of the predictions of trained output heads."""
