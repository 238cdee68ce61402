"""The parts of the page on two models."""
