"""The Corpus page: attention heads and words in many sentences."""

from bert_probe.ui import corpus

corpus.render()
