"""The Answer page: predictions of the model's trained task head for a text."""

from bert_probe.ui import answer

answer.render()
