"""Questions about what an output depends on: attribution, ablation and patching."""
