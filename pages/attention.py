"""The page Attention: which tokens attend to which, in any layer and head."""

from bert_probe.ui import attention

attention.render()
