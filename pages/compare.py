"""The Compare page: a comparison of two sentences that differ in a few words."""

from bert_probe.ui import compare

compare.render()
