"""What the numbers of a comparison say, as a sentence that says no more than they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bert_probe.model.trace import Array, resolve
from bert_probe.text.truncation import truncate_text

if TYPE_CHECKING:
    from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult


def finding(pair: MinimalPairResult, place: int | None = None) -> str:
    """What changed for the aligned unit at a place; see `MinimalPairResult.finding`."""
    if pair.same_input:
        return "Nothing changed: to the model both texts are the same."
    place = pair.most_moved if place is None else resolve(place, len(pair.alignment.pairs), "place")
    said = f"{_moved(pair, place)}; {_shifted(pair, place)}. {_largest_change(pair)}."
    if not pair.alignment.shares_text:
        return f"The texts have no {_unit(pair)} in common; only special tokens can be compared. {said}"
    return said


def _moved(pair: MinimalPairResult, place: int) -> str:
    peaks = np.nan_to_num(pair.moved).max(axis=0)
    name = _name(pair, place)
    if peaks[place] == 0:
        return f"{name} moved in no layer"
    layers = np.flatnonzero(pair.moved[:, place] == peaks[place])
    where = f"layer {layers[0]}" if len(layers) == 1 else "layers " + _listed([str(n) for n in layers])
    by = f"1 − cosine {_amount(peaks[place])}"
    if peaks[place] == peaks.max() and (peaks == peaks.max()).sum() == 1:
        return f"Of all aligned {_unit(pair)}s {name} moved most: {by} in {where}"
    return f"{name} moved most in {where} ({by})"


def _shifted(pair: MinimalPairResult, place: int) -> str:
    shift = pair.shift[:, :, place]
    amount = float(shift.max())
    if amount == 0:
        return "no head shifts its attention"
    heads = np.argwhere(shift == amount)
    if len(heads) > 1:
        return f"{len(heads)} heads shift {_amount(amount)} of its attention each, and none shifts more"
    layer, head = heads[0]
    a, b = pair.strongest_a[place], pair.strongest_b[place]
    keys = int((b - a).argmin()), int((b - a).argmax())
    source, target = (f"{_key(pair, key)} ({a[key]:.2f} → {b[key]:.2f})" for key in keys)
    return f"head {_head(layer, head)} shifts {_amount(amount)} of its attention from {source} to {target}"


def _key(pair: MinimalPairResult, key: int) -> str:
    return f"the changed {_unit(pair)}s" if key == len(pair.alignment.pairs) else _name(pair, key)


def _largest_change(pair: MinimalPairResult) -> str:
    largest = float(pair.total_variation.max())
    if largest == 0:
        return f"No head changed in the aligned {_unit(pair)}s"
    heads = [_head(*index) for index in np.argwhere(pair.total_variation == largest)]
    changed = f"Head {heads[0]}" if len(heads) == 1 else f"{len(heads)} heads"
    return f"{changed} changed most over all aligned {_unit(pair)}s: total variation {_amount(largest)}"


def _head(layer: int, head: int) -> str:
    return f"{layer + 1}.{head + 1}"


def _name(pair: MinimalPairResult, place: int) -> str:
    """A unit in quotation marks, with its position where another is written the same."""
    names = [unit.display for unit in pair.alignment.aligned]
    unit = pair.alignment.aligned[place]
    shown = f"‘{truncate_text(unit.display)}’"
    return shown if names.count(unit.display) == 1 else f"{shown} ({unit.position})"


def _unit(pair: MinimalPairResult) -> str:
    return "word" if pair.question.words else "token"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _amount(value: float | Array) -> str:
    """Two decimals; never a zero for what is not one."""
    return "less than 0.01" if value < 0.005 else f"{value:.2f}"
