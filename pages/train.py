"""The page Train: fine-tuning the model."""

from bert_probe.ui import train

train.render()
