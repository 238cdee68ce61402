"""The parts of the page that trains."""
