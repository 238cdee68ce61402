"""The Search page: rank documents by their similarity to a query, and explain each score."""

from bert_probe.ui import search

search.render()
