"""Analyses of hidden states and pooled vectors."""
