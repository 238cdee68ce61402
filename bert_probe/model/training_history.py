"""What a model was taught here before: enough to know whether it may have seen a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bert_probe.errors import CheckpointError
from bert_probe.model.sources import read_json

FILE = "bert_probe.json"
"""In the folder of a model that was taught; the oldest training stands first."""


@dataclass(frozen=True)
class TrainingHistory:
    """With which data a model was taught.

    Attributes:
        data: their SHA-256, as in provenance; all of them, where a share was held out.
        held_out: SHA-256 of the data that were held out; "" where that was a share.
        share, seed: that share, and by which seed it was drawn; 0 and 0 where other data were held out.
    """

    data: str
    held_out: str
    share: float
    seed: int


def trainings_in(folder: Path) -> tuple[TrainingHistory, ...]:
    """What a folder says; nothing where it says nothing, or nothing that can be read."""
    try:
        told = read_json(folder / FILE)["trainings"] if (folder / FILE).is_file() else []
        found = tuple(TrainingHistory(**one) for one in told)
    except (CheckpointError, TypeError, KeyError):
        return ()
    return found if all(map(_is_whole, found)) else ()


def _is_whole(one: TrainingHistory) -> bool:
    texts, numbers = (one.data, one.held_out), (one.share, one.seed)
    return all(isinstance(part, str) for part in texts) and all(
        isinstance(part, int | float) for part in numbers
    )


def write_trainings(folder: Path, trainings: Sequence[TrainingHistory]) -> None:
    """Into a folder that is being made."""
    told = {"trainings": [asdict(training) for training in trainings]}
    (folder / FILE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def seen(before: Sequence[TrainingHistory], now: TrainingHistory) -> str:
    """A sentence where what is held out now may have been taught before; "" where that is not known.

    Rows of one file are drawn alike by one share and seed, so that what was held out then is held out again.
    """
    for one in reversed(before):
        if now.held_out and one.data == now.held_out:
            return _SEEN.format("with the held-out data", "Hold out data that it has never seen.")
        same = (one.held_out, one.share, one.seed) == (now.held_out, now.share, now.seed)
        if not now.held_out and now.share and one.data == now.data and not same:
            then = f"a share of {one.share:g} by seed {one.seed}" if one.share else "nothing"
            again = f"{one.share:g} by seed {one.seed} again" if one.share else "other data"
            return _SEEN.format(
                f"with these data, of which {then} was held out",
                f"Hold out {again}, or begin with a model that has not seen them.",
            )
    return ""


_SEEN = "This model was taught before {}: what is held out now may have been taught then, which flatters. {}"
