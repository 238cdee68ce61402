"""Search a store for the contexts that are nearest to a word in context."""
