"""What a store holds, whom it was made with, and what of its inputs could not be read."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import REFUSALS
from bert_probe.ui import state
from bert_probe.ui.corpus import stores

_LISTED: Final = 1_000
"""Refusals that are shown."""


def line(store: Store) -> None:
    """A line beside the store's name."""
    unit = "words" if store.question.words else "tokens"
    parts = [
        f"**{store.rows:,}** sentences",
        f"**{store.tokens:,}** {unit}",
        *([f"**{store.refusals:,}** refused"] if store.refusals else []),
        f"read by **{state.plain(str(store.manifest['model']['model']))}**",
    ]
    st.markdown(" · ".join(parts), width="content")


def unfinished(store: Store) -> None:
    """Say so."""
    if not store.finished:
        st.warning(
            f"This store is not finished: {store.records:,} of {store.manifest['records']:,} sentences are "
            "there, and all that is shown is of these. Run the same bert-probe corpus run again to go on."
        )


def part(store: Store) -> None:
    """All of it."""
    if stores.is_made(store):
        st.info(
            "This store was made on a page, and is deleted when no page shows it any more. To keep one, run "
            "bert-probe corpus run on the same file."
        )
    manifest, question = store.manifest, store.question
    model = manifest["model"]
    rows = [
        ("Sentences", f"{store.rows:,}"),
        ("Words" if question.words else "Tokens", f"{store.tokens:,}"),
        ("Refused", f"{store.refusals:,}"),
        ("Model", model["model"]),
        ("Revision", model.get("revision") or "–"),
        ("Weights, SHA-256", model["weights_sha256"]),
        ("Computed in", model.get("dtype", "–")),
        ("Kept", ", ".join(question.keep) or "tokens alone"),
        ("Vectors of layers", ", ".join(map(str, store.layers)) or "none"),
        ("Stored as", question.dtype if store.layers else "–"),
        ("Parts", f"{len(store.shards):,}"),
        ("Bytes", f"{sum(file['bytes'] for shard in store.shards for file in shard.files.values()):,}"),
        ("Digest, SHA-256", store.digest),
    ]
    _table(pd.DataFrame(rows, columns=["what", "value"]), "What the store holds")
    st.header("Read from", anchor=False)
    inputs = [(one["name"], one["bytes"], one["sha256"]) for one in manifest["inputs"]]
    _table(pd.DataFrame(inputs, columns=["file", "bytes", "sha256"]), "The files that it was read from")
    refused(store)


def refused(store: Store) -> None:
    """What could not be read, and why."""
    if not store.refusals:
        return
    st.header("Refused", anchor=False)
    found = store.table(REFUSALS).head(_LISTED).to_pandas()
    _table(found[["row", "file", "line", "reason", "text"]], "Rows that were not read, with the reason")
    if store.refusals > len(found):
        st.caption(f"The first {len(found):,} of {store.refusals:,}; all of them are in the store's table.")


def _table(frame: pd.DataFrame, alt: str) -> None:
    config: dict[str, Any] = {
        "reason": st.column_config.TextColumn(width="large"),
        "value": st.column_config.TextColumn(width="large"),
    }
    height = min(38 + 35 * len(frame), 560)
    st.dataframe(frame, hide_index=True, width="stretch", height=height, column_config=config, alt=alt)
