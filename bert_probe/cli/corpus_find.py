"""The command that searches a store by attention."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.corpus_options import store_options
from bert_probe.cli.options import question_options
from bert_probe.core.result import Result
from bert_probe.corpus.attention_search import AttentionSearch
from bert_probe.corpus.store import Store


@click.command()
@store_options
@question_options(AttentionSearch)
def find(store: Store, arguments: dict[str, Any]) -> Result:
    """Pairs of words in STORE where a head attends most from one tag to another.

    A pair counts if the head's largest weight goes from the one word to the other. The store must have been
    made with --keep neighbours.
    """
    return AttentionSearch(**arguments).of(store)
