"""BERT Probe."""
