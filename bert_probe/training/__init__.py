"""Teaching a checkpoint a task: what it is given, what of it is updated, and what comes out."""
