"""Models: loading checkpoints, tokenizing texts, and recording forward passes as traces."""
