"""The Overview page: the most unusual observations about a text."""

from bert_probe.ui import overview

overview.render()
