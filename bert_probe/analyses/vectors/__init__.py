"""Questions about hidden states and pooled vectors."""
