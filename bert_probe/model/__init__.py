"""Load checkpoints, tokenize texts, and record forward passes as traces."""
