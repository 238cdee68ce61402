"""What is unusual about a text, ranked."""
