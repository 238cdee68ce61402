"""Test that files are written completely or not at all, and are replaced only if that is allowed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import pytest

from bert_probe.core import files, writing
from bert_probe.errors import ExportError
from bert_probe.runtime.terminal import exit_on_sigterm
from tests.helpers.racing import race
from tests.helpers.unprivileged import as_nobody, read_only_folder

TABLE = pd.DataFrame({"a": [1, 2]})


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_is_replaced_unless_overwrite_is_false(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious")
    with pytest.raises(ExportError, match=r"x\.csv already exists\. Choose another name"):
        files.save(TABLE, path, overwrite=False)
    assert (path.read_text(), listed(tmp_path)) == ("precious", ["x.csv"])
    assert files.save(TABLE, path) == [path, tmp_path / "x.csv.meta.json"]
    assert (path.read_text(), listed(tmp_path)) == ("a\n1\n2\n", ["x.csv", "x.csv.meta.json"])
    path.unlink()
    with pytest.raises(ExportError, match=r"x\.csv\.meta\.json already exists"):
        files.save(TABLE, path, overwrite=False)


@pytest.mark.skipif(os.name == "nt", reason="permissions of another kind")
def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.touch()
    path.chmod(0o640)
    files.save(TABLE, path)
    assert path.stat().st_mode & 0o777 == 0o640
    other = tmp_path / "other"
    other.touch()
    files.save(TABLE, tmp_path / "new.json")
    assert (tmp_path / "new.json").stat().st_mode == other.stat().st_mode


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("there.csv", "not_there.csv"):
        link = tmp_path / name
        link.symlink_to(folder / name)
        if name == "there.csv":
            (folder / name).write_text("old")
        files.save(TABLE, link)
        assert link.is_symlink()
        assert (folder / name).read_text() == "a\n1\n2\n"
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    with pytest.raises(ExportError, match="cannot be written: Too many levels"):
        files.save(TABLE, loop)
    assert loop.is_symlink()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "x.json"
    device.symlink_to("/dev/full")
    with pytest.raises(ExportError, match="cannot be written: No space left on device"):
        files.save(TABLE, device)
    assert Path("/dev/full").is_char_device()
    assert listed(tmp_path) == ["x.json"]


@pytest.mark.parametrize("stopped", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["_write_new", "replace"])
def test_interrupted_writing_leaves_no_files(
    stopped: BaseException, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious")
    write_new = writing._write_new

    def half(file: Path, content: bytes, like: Path) -> None:
        write_new(file, content[:3], like)
        raise stopped

    def renaming(_self: Path, _target: Path) -> None:
        raise stopped

    if step == "replace":
        monkeypatch.setattr(Path, "replace", renaming)
    else:
        monkeypatch.setattr(writing, "_write_new", half)
    with pytest.raises((ExportError, KeyboardInterrupt)):
        files.save(TABLE, path)
    assert (path.read_text(), listed(tmp_path)) == ("precious", ["x.csv"])


def test_table_is_never_next_to_the_provenance_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    files.save(TABLE, path)
    replace = Path.replace

    def once(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        files.save(pd.DataFrame({"b": [3]}), path)
    assert (path.read_text(), listed(tmp_path)) == ("b\n3\n", ["x.csv"])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is root's to write")
def test_unwritable_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("precious")
    path.chmod(0o440)
    with pytest.raises(ExportError, match="cannot be written: Permission denied"):
        files.save(TABLE, path)
    assert path.read_text() == "precious"


def test_reserved_file_is_refused_to_others_and_written_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with writing.reserved([path], overwrite=False):
        in_another_thread = ThreadPoolExecutor(1).submit(files.save, TABLE, tmp_path / "y.json")
        assert in_another_thread.result() == [tmp_path / "y.json"]
        refused = ThreadPoolExecutor(1).submit(reserve, path)
        with pytest.raises(ExportError, match=r"x\.json is being written by another command\. Wait"):
            refused.result()
        files.save(TABLE, path, overwrite=False)
    assert listed(tmp_path) == ["x.json", "y.json"]
    with pytest.raises(ExportError, match="already exists"):
        reserve(path)


def reserve(path: Path) -> None:
    with writing.reserved([path], overwrite=False):
        pass


def test_table_and_its_description_are_reserved_together(tmp_path: Path) -> None:
    with writing.reserved(files.output_paths(tmp_path / "x.csv"), overwrite=False):
        refused = ThreadPoolExecutor(1).submit(reserve, tmp_path / "x.csv.meta.json")
        with pytest.raises(ExportError, match="is being written by another command"):
            refused.result()


def test_file_given_for_two_outputs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "x.json")
    with (
        pytest.raises(ExportError, match=r"link\.json is the path of two output files"),
        writing.reserved([tmp_path / "x.json", tmp_path / "link.json"], overwrite=True),
    ):
        pytest.fail("reserved")
    assert listed(tmp_path) == ["link.json"]


@pytest.mark.parametrize("has_links", [True, False])
def test_file_that_another_program_creates_meanwhile_is_kept(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    write_new = writing._write_new

    def created(file: Path, content: bytes, like: Path) -> None:
        write_new(file, content, like)
        (tmp_path / "x.csv.meta.json").write_text("mine")

    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(writing, "_write_new", created)
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ExportError, match=r"x\.csv\.meta\.json already exists"):
        files.save(TABLE, path, overwrite=False)
    assert listed(tmp_path) == ["x.csv.meta.json"]
    assert (tmp_path / "x.csv.meta.json").read_text() == "mine"


def test_new_file_is_written_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "link")
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError), raising=False)
    files.save(TABLE, tmp_path / "x.json", overwrite=False)
    assert listed(tmp_path) == ["x.json"]


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_reservation_of_an_ended_process_does_not_block(ended: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    child = os.fork()
    if not child:
        try:
            with exit_on_sigterm(), writing.reserved([path], overwrite=False):
                os.kill(os.getpid(), ended)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    left = listed(tmp_path)
    assert [*map(writing.is_lock_file, map(Path, left))] == ([True] if ended == signal.SIGKILL else [])
    files.save(TABLE, path, overwrite=False)
    assert listed(tmp_path) == ["x.json"]


@pytest.mark.parametrize("name", ["flock", "acquire"])
@pytest.mark.parametrize("is_before", [True, False])
def test_signal_while_a_path_is_locked_leaves_no_lock(
    name: str, is_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = fcntl if name == "flock" else filelock.FileLock
    original = getattr(owner, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        if not is_before:
            original(*arguments, **options)
        raise SystemExit(143)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(SystemExit):
        reserve(tmp_path / "x.json")
    assert listed(tmp_path) == []
    reserve(tmp_path / "x.json")


def test_two_processes_that_write_at_once_leave_the_table_of_one(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / f"{number}.csv"
        refused, winner = race(
            lambda name: files.save(pd.DataFrame({name: [1]}), path, overwrite=False)  # noqa: B023
        )
        assert (refused, winner) == ("refused", f"saved by {path.read_text()[0]}")
    assert len(listed(tmp_path)) == 20


@pytest.mark.prove
def test_two_processes_that_replace_at_once_leave_a_table_with_its_own_description(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def write(name: str) -> None:
        frame = pd.DataFrame({name: [1]})
        frame.attrs["provenance"] = {"by": name}
        files.save(frame, path)

    for _ in range(10):
        assert race(write) == ["saved by a", "saved by b"]
        assert json.loads((tmp_path / "x.csv.meta.json").read_text()) == {"by": path.read_text()[0]}
    assert listed(tmp_path) == ["x.csv", "x.csv.meta.json"]


def test_file_system_without_locks_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    reserve(tmp_path / "x.json")
    files.save(TABLE, tmp_path / "x.json", overwrite=False)
    assert "x.json" in listed(tmp_path)


def test_read_only_folder_is_refused_when_it_is_reserved() -> None:
    with read_only_folder() as folder:
        (folder / "old.json").write_text("{}")
        (folder / "old.json").chmod(0o666)
        for name in ("new.json", "old.json"):
            message = as_nobody(lambda: reserve(folder / name))  # noqa: B023
            assert message == f"{folder / name} cannot be written: Permission denied. Choose another path."
        assert as_nobody(lambda: reserve(folder / "open" / "new.json")) == "done"
        assert (listed(folder), listed(folder / "open")) == (["old.json", "open"], [])
