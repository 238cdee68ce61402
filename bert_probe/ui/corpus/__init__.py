"""The Corpus page: choosing and building stores, and the sections that query them."""
