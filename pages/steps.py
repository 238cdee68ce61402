"""The Steps page: how one attention weight is computed."""

from bert_probe.ui import steps

steps.render()
