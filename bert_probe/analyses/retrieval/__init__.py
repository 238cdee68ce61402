"""Questions about documents that are ranked for a query."""
