"""Stress tests: hostile texts, checkpoints and requests, many users, and failures of the environment."""
