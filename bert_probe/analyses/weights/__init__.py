"""Analyses of the parameters of a checkpoint."""
