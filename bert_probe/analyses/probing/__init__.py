"""What layers and heads know of sentences whose words have tags or heads: a file each."""
