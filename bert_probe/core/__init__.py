"""What an answer knows of itself, and how it is written down."""
