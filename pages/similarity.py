"""The page Similarity: cosine similarity of tokens."""

from bert_probe.ui import similarity

similarity.render()
