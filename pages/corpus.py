"""The page Corpus: heads and words over many sentences."""

from bert_probe.ui import corpus

corpus.render()
