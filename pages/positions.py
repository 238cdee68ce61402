"""The page Positions: position embeddings."""

from bert_probe.ui import positions

positions.render()
