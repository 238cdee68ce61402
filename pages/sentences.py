"""The Sentences page: similarity of sentences."""

from bert_probe.ui import sentences

sentences.render()
