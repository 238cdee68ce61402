"""The Similarity page: cosine similarity of tokens."""

from bert_probe.ui import similarity

similarity.render()
