"""The page Sentences: similarity of sentences."""

from bert_probe.ui import sentences

sentences.render()
