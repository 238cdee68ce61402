"""The page Corpus: choosing and building stores, and the parts that query them."""
