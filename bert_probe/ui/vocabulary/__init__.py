"""The parts of the page on a model's vocabulary."""
