"""The Probes page: linear probes of each layer, structural probes, and heads that track relations."""

from bert_probe.ui import probes

probes.render()
