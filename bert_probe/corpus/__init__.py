"""Analyze many sentences: extract their numbers once into a store of tables, then query the store."""
