"""The Map page: token vectors of every layer, projected onto a plane."""

from bert_probe.ui import token_map

token_map.render()
