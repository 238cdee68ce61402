"""The page Evaluate: evaluation of sentence vectors on judged data, also for two models on the same data."""

from bert_probe.ui import evaluate

evaluate.render()
