"""The Heads page: profiles of all attention heads, a search for heads, and ablation."""

from bert_probe.ui import heads

heads.render()
