"""The standing proof: hostile texts, checkpoints, requests and crowds, and what breaks beneath the app."""
