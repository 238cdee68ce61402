"""The Evaluate page: evaluation of the sentence vectors of one or two models on judged data."""

from bert_probe.ui import evaluate

evaluate.render()
