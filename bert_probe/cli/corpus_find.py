"""The command that finds rows by what a head does in them."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.corpus_options import asking_a_store
from bert_probe.cli.options import asking
from bert_probe.core.result import Result
from bert_probe.corpus.attention_search import AttentionSearch
from bert_probe.corpus.store import Store


@click.command()
@asking_a_store
@asking(AttentionSearch)
def find(store: Store, asked: dict[str, Any]) -> Result:
    """Where in STORE a head looks from a word of one kind to one of another.

    Kinds are the tags of its files, and a head looks where its strongest weight lies. The store must hold
    neighbours.
    """
    return AttentionSearch(**asked).of(store)
