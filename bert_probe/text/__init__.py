"""Group tokens into words, align texts, and read files of sentences, labeled texts or tagged sentences."""
