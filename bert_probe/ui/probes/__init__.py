"""The Probes page: its files and its sections."""
