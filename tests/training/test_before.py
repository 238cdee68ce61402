"""Test records of earlier training runs, and warnings if these runs may have trained on held-out examples."""

from __future__ import annotations

from pathlib import Path

import pytest

import bert_probe
from bert_probe import Train
from bert_probe.model.checkpoint import (
    HISTORY_FILE,
    TrainingHistory,
    overlap_warning,
    read_training_history,
)
from tests.helpers.teaching import texts, without_dropout

A_FIFTH = TrainingHistory("data", "", 0.2, 0)
OTHER_SEED, NOTHING = TrainingHistory("data", "", 0.2, 1), TrainingHistory("data", "", 0.0, 0)
A_FILE = TrainingHistory("data", "file", 0.0, 0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([], A_FIFTH, ""),
        ([A_FIFTH], A_FIFTH, ""),
        ([TrainingHistory("others", "", 0.2, 1)], A_FIFTH, ""),
        ([OTHER_SEED], A_FIFTH, "of which a share of 0.2 with seed 1 was held out"),
        ([OTHER_SEED, A_FIFTH], A_FIFTH, "of which a share of 0.2 with seed 1 was held out"),
        ([TrainingHistory("data", "", 0.5, 0)], A_FIFTH, "Hold out a share of 0.5 with seed 0 again"),
        ([NOTHING], A_FIFTH, "of which nothing was held out"),
        ([A_FILE], A_FIFTH, "of which nothing was held out"),
        ([A_FILE], A_FILE, ""),
        ([A_FIFTH], NOTHING, ""),
        ([TrainingHistory("file", "", 0.2, 0)], A_FILE, "trained on the held-out data"),
    ],
)
def test_overlap_with_earlier_training_warns(
    before: list[TrainingHistory], now: TrainingHistory, expected: str
) -> None:
    result = overlap_warning(before, now)
    assert expected in result
    assert bool(result) == bool(expected)


def test_continued_training_with_another_seed_warns(tmp_path: Path) -> None:
    data = texts(20)
    first = Train(epochs=1).of(without_dropout(tmp_path / "bert"), data)
    assert first.warnings == ()
    folder = first.save_model(tmp_path / "trained")
    for checkpoint in (first.checkpoint, bert_probe.load(folder)):
        again, other = (Train(epochs=1, seed=seed).plan(checkpoint, data) for seed in (0, 1))
        trained = {*first.data.rows}
        assert again.warnings == ()
        assert not trained & {*again.material.held_out_rows.rows}
        assert trained & {*other.material.held_out_rows.rows}
        assert len(other.warnings) == 1
    second = other.run()
    assert second.warnings == other.warnings
    assert other.warnings[0] in second.table().attrs["provenance"]["facts"]["notes"]
    place = second.save_model(tmp_path / "again")
    assert other.warnings[0] in (place / "README.md").read_text()
    assert [item.seed for item in read_training_history(place)] == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"trainings": 3}',
        '{"trainings": [[1]]}',
        '{"trainings": [{"data": "x"}]}',
        '{"trainings": [{"data": "x", "held_out": "", "share": "a", "seed": 0}]}',
    ],
)
def test_empty_training_record_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / HISTORY_FILE).write_text(content)
    assert read_training_history(tmp_path) == ()
    assert read_training_history(tmp_path / "nowhere") == ()
