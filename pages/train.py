"""The page Train: fine-tuning the model."""

from bert_probe.ui.train import page

page.render()
