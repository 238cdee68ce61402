"""Stress tests: hostile texts, checkpoints and requests, many users, and failing disks and signals."""
