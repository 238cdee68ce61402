"""What BERT Probe costs beside its rivals: ratios of medians, each from one paired run. `make bench`."""
