"""Questions about what trained heads predict."""
