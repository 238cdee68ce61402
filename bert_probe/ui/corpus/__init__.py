"""Parts of the corpus page: which stores may be opened, how one is made, what is asked of it."""
