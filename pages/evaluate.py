"""The page Evaluate: sentence vectors measured on judged data, and two models on the same data."""

from bert_probe.ui import evaluate

evaluate.render()
