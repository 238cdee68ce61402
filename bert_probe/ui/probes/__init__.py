"""The page Probes: its files and its parts."""
