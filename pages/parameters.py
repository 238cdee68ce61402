"""The Parameters page: all parameters of the model."""

from bert_probe.ui import parameters

parameters.render()
