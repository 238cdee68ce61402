"""The Context page: a word in several sentences, and how similar its vectors are at every layer."""

from bert_probe.ui import context

context.render()
