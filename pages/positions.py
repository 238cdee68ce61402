"""The Positions page: position embeddings."""

from bert_probe.ui import positions

positions.render()
