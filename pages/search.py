"""The page Search: documents ranked by their similarity to a query, with the parts of each score."""

from bert_probe.ui import search

search.render()
