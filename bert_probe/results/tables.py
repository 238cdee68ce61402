"""Every result as a pandas DataFrame that knows where it came from.

``frame.attrs["provenance"]`` names model, digest, libraries, text and view. Layers and heads in tables
count from 1, as people do; arguments of the functions are Python indices from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from bert_probe.analyses.ablation import Ablation, SimilarityChange
from bert_probe.analyses.head_means import ProfileMeans
from bert_probe.analyses.heads import Found, HeadProfiles
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit

TOKEN = "token"


def heads_table(profiles: HeadProfiles, trace: Trace) -> pd.DataFrame:
    """One row a head: layer, head, the measures of `HeadProfiles`, label."""
    frame = _by_head(profiles.values, profiles.labels)
    return _with(frame, trace.provenance, table="heads", words=profiles.words)


def profile_means_table(means: ProfileMeans, checkpoint: Checkpoint) -> pd.DataFrame:
    """One row a head: layer, head, each measure's mean and its ``_low`` and ``_high``, label."""
    columns: dict[str, Array] = {}
    for name, mean in means.mean.items():
        columns |= {name: mean, f"{name}_low": means.low[name], f"{name}_high": means.high[name]}
    fields = ("sentences", "tokens_dropped", "words", "confidence", "resamples", "seed")
    view = {name: getattr(means, name) for name in fields} | {"sentences_sha256": means.digest}
    frame = _by_head(columns, means.labels)
    return _with(frame, checkpoint.provenance(), table="heads over sentences", **view)


def _by_head(columns: Mapping[str, Array], labels: Sequence[Sequence[str]]) -> pd.DataFrame:
    """One row a head: layer, head, the columns, each [layer, head], label."""
    layers, heads = np.indices((len(labels), len(labels[0]))) + 1
    frame = pd.DataFrame({"layer": layers.ravel(), "head": heads.ravel()})
    for name, values in columns.items():
        frame[name] = values.ravel()
    frame["label"] = [label for row in labels for label in row]
    return frame


def found_table(found: Sequence[Found], trace: Trace, pairs: Sequence[tuple[Unit, Unit]]) -> pd.DataFrame:
    """One row a head, in the order found: layer, head, weight, rank_in_row."""
    ranks = [int(one.rank) if one.rank.is_integer() else one.rank for one in found]
    frame = pd.DataFrame(
        {
            "layer": [one.layer + 1 for one in found],
            "head": [one.head + 1 for one in found],
            "weight": [one.weight for one in found],
            "rank_in_row": ranks,
        }
    )
    named = [[str(query), query.position, str(key), key.position] for query, key in pairs]
    return _with(frame, trace.provenance, table="find", query_key_pairs=named)


def ablation_table(
    results: Iterable[Ablation], checkpoint: Checkpoint, encoding: Encoding, replacement: str
) -> pd.DataFrame:
    """One row a set of heads, largest effect first: layer, head, cls_change, mean_token_change.

    A set of several heads has no one layer: ``layer`` is empty and ``head`` reads 8.10+3.2. Results are
    taken one by one, so that what `ablate` yields need not be held together.
    """
    rows = [(one.heads, one.cls_change, one.mean_token_change) for one in results]
    rows.sort(key=lambda row: -row[2])
    single = all(len(heads) == 1 for heads, _, _ in rows)
    frame = pd.DataFrame(
        {
            "layer": pd.array([heads[0][0] + 1 if single else None for heads, _, _ in rows], dtype="Int64"),
            "head": [heads[0][1] + 1 if single else _head_names(heads) for heads, _, _ in rows],
            "cls_change": [change for _, change, _ in rows],
            "mean_token_change": [change for _, _, change in rows],
        }
    )
    return _with(frame, checkpoint.provenance(encoding), table="ablation", replacement=replacement)


def ablation_tokens_table(
    result: Ablation, checkpoint: Checkpoint, encoding: Encoding, replacement: str
) -> pd.DataFrame:
    """One row a token: position, token, change of its last-layer vector (1 − cosine)."""
    frame = pd.DataFrame(
        {
            "position": [token.position for token in encoding.tokens],
            TOKEN: _names(encoding.tokens),
            "change": result.token_change,
        }
    )
    view = _ablation_view(result, replacement)
    return _with(frame, checkpoint.provenance(encoding), table="ablation by token", **view)


def similarity_change_table(
    change: SimilarityChange,
    checkpoint: Checkpoint,
    encoding: Encoding,
    replacement: str,
    which: Literal["before", "after", "difference"] = "difference",
) -> pd.DataFrame:
    """Cosines of the tokens with each other as a matrix: before, after, or after minus before.

    Raises:
        SelectionError: another ``which``.
    """
    if which not in ("before", "after", "difference"):
        raise SelectionError(f"There is no {which!r}; choose before, after or difference.")
    return matrix_table(
        getattr(change, which),
        change.tokens,
        change.tokens,
        checkpoint.provenance(encoding),
        table="ablation of the similarity",
        which=which,
        **_ablation_view(change.ablation, replacement),
    )


def _ablation_view(result: Ablation, replacement: str) -> dict[str, Any]:
    return {
        "heads": _head_names(result.heads),
        "replacement": replacement,
        "cls_change": result.cls_change,
        "pooler_change": result.pooler_change,
        "mean_token_change": result.mean_token_change,
    }


def _head_names(heads: Sequence[tuple[int, int]]) -> str:
    return "+".join(f"{layer + 1}.{head + 1}" for layer, head in heads)


def matrix_table(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    provenance: Mapping[str, Any],
    label: str = TOKEN,
    **view: Any,
) -> pd.DataFrame:
    """A matrix with names on both axes, ``label`` saying what the rows are; names may repeat."""
    index = pd.Index(_names(rows), name=label, dtype=object)
    frame = pd.DataFrame(values, index=index, columns=pd.Index(_names(columns), dtype=object))
    return _with(frame, provenance, **view)


def columns_table(columns: Mapping[str, Any], provenance: Mapping[str, Any], **view: Any) -> pd.DataFrame:
    """A table of named columns of one length."""
    return _with(pd.DataFrame(columns), provenance, **view)


def vectors_table(
    values: Array, rows: Sequence[str], provenance: Mapping[str, Any], label: str = TOKEN, **view: Any
) -> pd.DataFrame:
    """Vectors with a name each; columns are the dimensions, "0", "1", …"""
    index = pd.Index(_names(rows), name=label, dtype=object)
    columns = [str(dimension) for dimension in range(values.shape[1])]
    return _with(pd.DataFrame(values, index=index, columns=columns), provenance, **view)


def _names(tokens: Sequence[Token] | Sequence[str]) -> list[str]:
    return [str(token) for token in tokens]


def _with(frame: pd.DataFrame, provenance: Mapping[str, Any], **view: Any) -> pd.DataFrame:
    frame.attrs["provenance"] = {**provenance, "view": view}
    return frame
