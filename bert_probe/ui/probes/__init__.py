"""Parts of the probes page."""
