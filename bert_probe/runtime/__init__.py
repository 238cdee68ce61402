"""What computes for others: caches and jobs, without a user interface."""
