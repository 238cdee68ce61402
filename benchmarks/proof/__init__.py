"""Stress tests: hostile texts, checkpoints and requests, many concurrent users, and failing disks and signals."""
