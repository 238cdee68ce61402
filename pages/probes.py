"""The page Probes: linear probes for each layer, structural probes, and relations predicted by heads."""

from bert_probe.ui import probes

probes.render()
