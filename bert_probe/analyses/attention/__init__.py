"""Questions about attention weights and heads."""
