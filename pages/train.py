"""The Train page: fine-tuning the model."""

from bert_probe.ui import train

train.render()
