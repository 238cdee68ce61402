"""The Corpus page, on which the user builds, selects and queries stores."""
