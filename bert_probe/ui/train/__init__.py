"""The page Train: its data, its settings, the training and its result."""
