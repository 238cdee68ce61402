"""The page Heads: profiles of all heads, search for a head, ablation."""

from bert_probe.ui import heads

heads.render()
