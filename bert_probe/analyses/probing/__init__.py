"""Probes of the labels, syntactic relations and trees that layers and attention heads encode."""
