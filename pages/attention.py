"""The Attention page: attention weights between tokens, in any layer and head."""

from bert_probe.ui import attention

attention.render()
