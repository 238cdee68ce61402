"""Analyses of what a prediction depends on: attribution, ablation and activation patching."""
