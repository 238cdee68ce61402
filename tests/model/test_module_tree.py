"""Test the tree of a model's modules."""

from __future__ import annotations

from transformers import AutoModel

from bert_probe.model.layers import module_tree
from tests.helpers import families


def test_module_tree_contains_all_modules() -> None:
    model = AutoModel.from_config(families.config("bert"))
    tree = list(module_tree(model))
    total = sum(parameter.numel() for parameter in model.parameters())
    assert tree[0] == (0, "", "BertModel", total)
    assert tree[1][:3] == (1, "embeddings", "BertEmbeddings")
    assert tree[2] == (2, "word_embeddings", "Embedding", model.embeddings.word_embeddings.weight.numel())
    assert len(tree) == len(list(model.modules()))
    children = sum(count for depth, _, _, count in tree if depth == 1)
    assert children == tree[0][3]
    layer = next(row for row in tree if row[2] == "BertLayer")
    assert layer == (3, "0", "BertLayer", 7504)
