"""Questions about the parameters of a checkpoint."""
