"""The parts of the heads page."""
