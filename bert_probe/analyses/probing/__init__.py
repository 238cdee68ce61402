"""Probes: what layers and heads encode about labels, relations and trees."""
