"""Test saving: a folder is written completely or not at all, and an existing folder is kept until then."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bert_probe
from bert_probe import Train
from bert_probe.core.writing import is_lock_file
from bert_probe.errors import ExportError
from bert_probe.training.saving import check_space, find_leftovers, reserve_folder, write_folder
from tests.helpers.racing import race
from tests.helpers.teaching import texts, without_dropout
from tests.helpers.unprivileged import as_nobody, read_only_folder


def model(folder: Path, content: str = "{}") -> None:
    (folder / "config.json").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, so that writing fails like on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_folder_is_created_and_replaced_atomically(tmp_path: Path) -> None:
    place = tmp_path / "model"
    write_folder(place, lambda folder: model(folder, "1"))
    with pytest.raises(ExportError, match=r"model already exists\. .*--force"):
        write_folder(place, model)
    write_folder(place, lambda folder: model(folder, "2"), replaces=True)
    assert (names(tmp_path), names(place)) == (["model"], ["bert_probe.json", "config.json"])
    assert (place / "config.json").read_text() == "2"


def test_files_have_the_permissions_of_the_folder(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        save_file({"a": torch.ones(2)}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o600)

    write_folder(tmp_path / "model", fill)
    plain = (tmp_path / "model").stat().st_mode & 0o666
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode & 0o777 == plain


@pytest.mark.parametrize(
    "ended",
    [
        KeyboardInterrupt(),
        MemoryError(),
        OSError(28, "No space left on device"),
        Exception("No space left on device"),  # raised by tokenizers
    ],
)
def test_failed_save_keeps_the_old_folder(tmp_path: Path, ended: BaseException) -> None:
    place = tmp_path / "model"
    write_folder(place, lambda folder: model(folder, "old"))

    def fill(folder: Path) -> None:
        model(folder, "new")
        raise ended

    is_from_writing = isinstance(ended, OSError) or type(ended) is Exception
    with pytest.raises(ExportError if is_from_writing else type(ended)) as caught:
        write_folder(place, fill, replaces=True)
    if is_from_writing:
        assert (
            str(caught.value) == f"{place} cannot be written: No space left on device. Choose another path."
        )
    assert names(tmp_path) == ["model"]
    assert (place / "config.json").read_text() == "old"


def test_full_disk_allows_saving_elsewhere(tmp_path: Path) -> None:
    trained = Train(epochs=1).of(without_dropout(tmp_path / "bert"), texts(12))
    place = trained.save_model(tmp_path / "trained")
    before = {name: (place / name).read_bytes() for name in names(place)}
    with (
        limited_file_size(20_000),
        pytest.raises(ExportError, match=r"cannot be written: .*\. Choose another"),
    ):
        trained.save_model(place, replace=True)
    assert {name: (place / name).read_bytes() for name in names(place)} == before
    assert names(tmp_path) == ["bert", "trained"]
    assert bert_probe.load(trained.save_model(tmp_path / "elsewhere")).tasks == ("text-classification",)


def test_leftovers_of_killed_processes_are_listed(tmp_path: Path) -> None:
    place = tmp_path / "mod*el"
    write_folder(place, lambda folder: model(folder, "old"))
    assert find_leftovers(place) == []
    child = os.fork()
    if not child:
        write_folder(place, lambda folder: (model(folder), os._exit(9)), replaces=True)  # type: ignore[arg-type, func-returns-value]
    os.waitpid(child, 0)
    assert (place / "config.json").read_text() == "old"
    (left,) = [path for path in tmp_path.iterdir() if path != place and not is_lock_file(path)]
    assert find_leftovers(place) == [
        f"{left} is incomplete, because the process that wrote it was terminated. Delete this folder."
    ]
    aside = left.with_suffix(".old")
    left.rename(aside)
    assert find_leftovers(place) == [f"{aside} is the previous content of {place}. Delete this folder."]
    shutil.rmtree(place)
    assert find_leftovers(place) == [
        f"{aside} is the previous content of {place}, which is missing. Rename this folder to mod*el."
    ]
    assert find_leftovers(tmp_path / "model") == []


def test_reserved_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "none" / "model")
    with reserve_folder(tmp_path / "empty", False):
        pass
    for place, message in (
        (tmp_path / "file", "is a file, not a folder"),
        (tmp_path / "file" / "model", "Not a directory"),
        (tmp_path / "none" / "model", "There is no folder"),
        (tmp_path / "a\0b", "cannot be written"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "caf\udce9", "is not UTF-8"),
        (tmp_path / "loop", "is a symbolic link that forms a loop"),
        (tmp_path / "dangling", "There is no folder"),
        (Path("/proc"), "is a mount point|Nothing can be written"),
    ):
        with pytest.raises(ExportError, match=message), reserve_folder(place, True):
            pytest.fail("reserved")
    assert names(tmp_path) == ["dangling", "empty", "file", "loop"]
    with pytest.raises(ExportError, match=r"needs about 1,000,000,000\.0 GB, but only"):
        check_space(tmp_path / "model", 10**18)


def test_link_to_a_folder_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "model")
    for replaces in (False, True):
        write_folder(tmp_path / "link", lambda folder: model(folder, str(replaces)), replaces)  # noqa: B023
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "model" / "config.json").read_text() == str(replaces)
        assert names(tmp_path) == ["link", "model"]


def test_model_card_describes_training_and_escapes_names(tmp_path: Path) -> None:
    data = texts(12)
    labeled = type(data).of(
        "classes", [type(row)(row.text, None, f"```\n# {row.label}", 2) for row in data.rows]
    )
    trained = Train(epochs=1).of(without_dropout(tmp_path / "bert"), labeled)
    card = (trained.save_model(tmp_path / "trained") / "README.md").read_text()
    start, front, body = card.split("---\n", 2)
    assert start == ""
    assert 'pipeline_tag: "text-classification"' in front
    assert labeled.digest in body
    assert "\n# with" not in body
    assert body.count("```") % 2 == 0
    assert str(round(trained.best.held_out_loss, 6)) in body


def saved(folder: Path) -> Path:
    """Return a model folder that BERT Probe has saved."""
    write_folder(folder, lambda part: (model(part), (part / "vocab.txt").write_text("a")))  # type: ignore[arg-type, func-returns-value]
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def foreign_config(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / "config.json").write_text("{}")


def config_alone(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    model(folder)


def marker_of_another_place(folder: Path) -> None:
    (folder.parent / "precious.txt").write_text("years")
    marker = folder / "bert_probe.json"
    marker.write_text(marker.read_text().replace("vocab.txt", "../precious.txt"))


@pytest.mark.parametrize(
    ("change", "foreign"),
    [
        (foreign_config, ".git was not"),
        (config_alone, "config.json was not"),
        (lambda folder: (folder / "cat.png").write_text("photo"), "cat.png was not"),
        (lambda folder: (folder / "empty").mkdir(), "empty was not"),
        (lambda folder: (folder / "zlink").symlink_to(folder / "vocab.txt"), "zlink was not"),
        (lambda folder: (folder / "vocab.txt").write_text("edited"), "vocab.txt has changed"),
        (lambda folder: (folder / "bert_probe.json").unlink(), "config.json was not"),
        (
            lambda folder: (folder / "bert_probe.json").write_text("{"),
            "bert_probe.json was not|config.json was",
        ),
        (marker_of_another_place, "vocab.txt was not"),
    ],
)
def test_replacing_a_folder_with_foreign_files_names_the_first_and_keeps_all(
    tmp_path: Path, change: Callable[[Path], None], foreign: str
) -> None:
    place = saved(tmp_path / "model")
    change(place)
    before = contents(tmp_path)
    with pytest.raises(ExportError, match=rf"is not replaced, because ({foreign})"):
        write_folder(place, model, replaces=True)
    assert contents(tmp_path) == before


def lens(folder: Path, metadata: dict[str, str]) -> None:
    file = folder / "tuned-lens-0123456789ab.safetensors"
    save_file({"weights": torch.ones(1)}, file, metadata=metadata)
    file.with_name(f"{file.name}.meta.json").write_text("{}")


def test_model_with_a_tuned_lens_is_replaced(tmp_path: Path) -> None:
    place = saved(tmp_path / "model")
    lens(place, {"bert_probe": '{"weights_sha256": ""}'})
    write_folder(place, model, replaces=True)
    assert names(tmp_path) == ["model"]
    assert names(place) == ["bert_probe.json", "config.json"]


def test_file_that_is_only_named_like_a_tuned_lens_is_foreign(tmp_path: Path) -> None:
    place = saved(tmp_path / "model")
    lens(place, {"format": "pt"})
    with pytest.raises(ExportError, match=r"tuned-lens-0123456789ab\.\w+ was not saved by BERT Probe"):
        write_folder(place, model, replaces=True)


def test_file_added_while_the_new_model_is_written_is_kept(tmp_path: Path) -> None:
    place = saved(tmp_path / "model")

    def fill(folder: Path) -> None:
        model(folder, "new")
        (place / "notes.txt").write_text("mine")

    with pytest.raises(ExportError, match=r"notes\.txt was not saved .* The new model is in ") as caught:
        write_folder(place, fill, replaces=True)
    assert (place / "notes.txt").read_text() == "mine"
    assert (place / "vocab.txt").read_text() == "a"
    retained = Path(str(caught.value).rpartition(" is in ")[2].rstrip("."))
    assert (retained / "config.json").read_text() == "new"
    assert names(tmp_path) == sorted(["model", retained.name])


def test_folder_that_another_program_creates_meanwhile_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "model"

    def fill(folder: Path) -> None:
        model(folder, "new")
        place.mkdir()
        (place / "thesis.txt").write_text("mine")

    with pytest.raises(ExportError, match="The new model is in ") as caught:
        write_folder(place, fill, replaces=True)
    assert contents(place) == {"thesis.txt": b"mine"}
    retained = Path(str(caught.value).rpartition(" is in ")[2].rstrip("."))
    assert (retained / "config.json").read_text() == "new"


@pytest.mark.parametrize("replaces", [False, True])
def test_second_writer_of_a_reserved_folder_is_refused_at_once(tmp_path: Path, replaces: bool) -> None:
    place = tmp_path / "model"

    def second(folder: Path) -> None:
        model(folder, "first")
        for same in (place, tmp_path / "." / "model", tmp_path / "none" / ".." / "link"):
            with pytest.raises(ExportError, match="is being written by another command"):
                write_folder(same, lambda other: model(other, "second"), replaces)

    (tmp_path / "none").mkdir()
    (tmp_path / "link").symlink_to(place)
    write_folder(place, second, replaces)
    assert (place / "config.json").read_text() == "first"


def test_reservation_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    place = tmp_path / "model"
    child = os.fork()
    if not child:
        with reserve_folder(place, False):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    write_folder(place, model)
    assert names(tmp_path) == ["model"]


def test_two_processes_that_save_at_once_leave_the_model_of_one(tmp_path: Path) -> None:
    for number in range(5):
        place = tmp_path / str(number)
        refused, winner = race(lambda name: write_folder(place, lambda folder: model(folder, name)))  # noqa: B023
        assert (refused, winner) == ("refused", f"saved by {(place / 'config.json').read_text()}")
    assert names(tmp_path) == [*"01234"]


def test_model_in_a_read_only_folder_is_refused_when_it_is_reserved() -> None:
    def reserve(place: Path) -> None:
        with reserve_folder(place, True):
            pass

    with read_only_folder() as folder:
        for name in ("new", "open"):  # The folder "open" is writable, but it cannot be replaced.
            message = as_nobody(lambda: reserve(folder / name))  # noqa: B023
            assert message == f"{folder} is not writable. Choose another path."
        assert as_nobody(lambda: write_folder(folder / "open" / "model", model)) == "done"
        assert names(folder / "open") == ["model"]


def test_models_of_other_user_in_sticky_folder_and_new_one_are_kept() -> None:
    with read_only_folder() as folder:
        place = saved(folder / "open" / "model")
        (folder / "open").chmod(0o1777)
        before = contents(place)
        message = as_nobody(lambda: write_folder(place, lambda part: model(part, "new"), replaces=True))
        if message != "done":  # it is "done" only if the tests run without root privileges
            assert "cannot be written: Operation not permitted" in message
            retained = Path(message.rpartition(" is in ")[2].rstrip("."))
            assert (contents(place), (retained / "config.json").read_text()) == (before, "new")
