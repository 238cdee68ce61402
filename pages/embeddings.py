"""The Embeddings page: input embeddings, token vectors and the pooler."""

from bert_probe.ui import embeddings

embeddings.render()
