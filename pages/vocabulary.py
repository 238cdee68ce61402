"""The Vocabulary page: the model's vocabulary and how it splits a text."""

from bert_probe.ui import vocabulary

vocabulary.render()
