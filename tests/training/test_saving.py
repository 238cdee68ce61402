"""A folder is written whole or not at all, and what was there stays until then."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bert_probe
from bert_probe import Teach
from bert_probe.errors import ExportError
from bert_probe.training.saving import check_place, leftovers, write_folder
from tests.helpers.teaching import still, texts


def model(folder: Path, content: str = "{}") -> None:
    (folder / "config.json").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more into a file, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_is_made_and_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "model"
    write_folder(place, lambda folder: model(folder, "1"))
    with pytest.raises(ExportError, match=r"model is there already\. .*--force"):
        write_folder(place, model)
    (place / "vocab.txt").write_text("of the old one")
    write_folder(place, lambda folder: model(folder, "2"), replaces=True)
    assert (names(tmp_path), names(place)) == (["model"], ["config.json"])
    assert (place / "config.json").read_text() == "2"


def test_all_who_may_read_the_folder_may_read_its_files(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        save_file({"a": torch.ones(2)}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o600)

    write_folder(tmp_path / "model", fill)
    plain = (tmp_path / "model").stat().st_mode & 0o666
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode & 0o777 == plain


@pytest.mark.parametrize(
    "ended", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")]
)
def test_what_fails_leaves_nothing_and_the_old_folder(tmp_path: Path, ended: BaseException) -> None:
    place = tmp_path / "model"
    write_folder(place, lambda folder: model(folder, "old"))

    def fill(folder: Path) -> None:
        model(folder, "new")
        raise ended

    with pytest.raises(ExportError if isinstance(ended, OSError) else type(ended)) as caught:
        write_folder(place, fill, replaces=True)
    if isinstance(ended, OSError):
        assert (
            str(caught.value) == f"{place} cannot be written: No space left on device. Choose another place."
        )
    assert names(tmp_path) == ["model"]
    assert (place / "config.json").read_text() == "old"


def test_a_full_disk_leaves_the_taught_model_to_be_saved_elsewhere(tmp_path: Path) -> None:
    taught = Teach(epochs=1).of(still(tmp_path / "bert"), texts(12))
    place = taught.save_model(tmp_path / "taught")
    before = {name: (place / name).read_bytes() for name in names(place)}
    with (
        files_of_at_most(20_000),
        pytest.raises(ExportError, match=r"cannot be written: .*\. Choose another"),
    ):
        taught.save_model(place, replace=True)
    assert {name: (place / name).read_bytes() for name in names(place)} == before
    assert names(tmp_path) == ["bert", "taught"]
    assert bert_probe.load(taught.save_model(tmp_path / "elsewhere")).tasks == ("text-classification",)


def test_what_a_killed_process_left_is_named(tmp_path: Path) -> None:
    place = tmp_path / "mod*el"
    write_folder(place, lambda folder: model(folder, "old"))
    assert leftovers(place) == []
    child = os.fork()
    if not child:
        write_folder(place, lambda folder: (model(folder), os._exit(9)), replaces=True)  # type: ignore[arg-type, func-returns-value]
    os.waitpid(child, 0)
    assert (place / "config.json").read_text() == "old"
    (left,) = [one for one in tmp_path.iterdir() if one != place]
    assert leftovers(place) == [f"{left} was left half-written by a process that was ended. Delete it."]
    aside = left.with_suffix(".old")
    left.rename(aside)
    assert leftovers(place) == [f"{aside} is what {place} held before. Delete it."]
    (place / "config.json").unlink()
    place.rmdir()
    assert leftovers(place) == [f"{aside} is what {place} held before it was to be replaced. Rename it back."]
    assert leftovers(tmp_path / "model") == []


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty", 0, False)
    for place, size, said in (
        (tmp_path / "file", 0, "is a file, and a folder is to be written"),
        (tmp_path / "photos", 0, "holds other things than a model, which are not replaced"),
        (tmp_path / "none" / "model", 0, "There is no folder"),
        (tmp_path / "model", 10**18, "needs about 1,000,000,000.0 GB, and"),
        (tmp_path / "a\0b", 0, "cannot be written"),
    ):
        with pytest.raises(ExportError, match=said):
            check_place(place, size, True)


def test_the_card_says_what_was_taught_and_no_name_gets_out_of_it(tmp_path: Path) -> None:
    data = texts(12)
    labelled = type(data).of(
        "classes", [type(row)(row.text, None, f"```\n# {row.label}", 2) for row in data.rows]
    )
    taught = Teach(epochs=1).of(still(tmp_path / "bert"), labelled)
    card = (taught.save_model(tmp_path / "taught") / "README.md").read_text()
    start, front, body = card.split("---\n", 2)
    assert start == ""
    assert 'pipeline_tag: "text-classification"' in front
    assert labelled.digest in body
    assert "\n# with" not in body
    assert body.count("```") % 2 == 0
    assert str(round(taught.best.held_out_loss, 6)) in body
