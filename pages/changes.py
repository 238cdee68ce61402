"""The page Changes: two models on the same text."""

from bert_probe.ui.changes import page

page.render()
