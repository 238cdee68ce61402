"""The Changes page: a comparison of two models on the same text."""

from bert_probe.ui import changes

changes.render()
