"""The Heads page and the elements that its sections share."""
