"""Benchmarks against other libraries: ratios of medians from paired runs. Run them with `make bench`."""
