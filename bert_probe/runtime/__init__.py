"""Caches, background jobs and batching for all interfaces."""
