"""Fine-tune checkpoints: datasets, objectives, trainable parameters, the training loop, and saving."""
