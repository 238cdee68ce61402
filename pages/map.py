"""The page Map: token vectors of every layer on one plane."""

from bert_probe.ui import token_map

token_map.render()
