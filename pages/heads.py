"""The page Heads: profiles of all attention heads, search for a head, and ablation."""

from bert_probe.ui import heads

heads.render()
