"""The page Answer: the output of the model's trained head for a text."""

from bert_probe.ui import answer

answer.render()
