"""From a text to a trace."""
