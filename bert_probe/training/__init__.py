"""Fine-tuning of checkpoints: datasets, objectives, trainable parameters, the training loop, and saving."""
