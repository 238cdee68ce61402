"""Files are written whole or not at all, and replace nothing that they should not."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from bert_probe.errors import ExportError
from bert_probe.results import files, writing

TABLE = pd.DataFrame({"a": [1, 2]})


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_unless_that_is_not_wanted(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious")
    with pytest.raises(ExportError, match=r"x\.csv is there already\. Choose another name"):
        files.save(TABLE, path, overwrite=False)
    assert (path.read_text(), listed(tmp_path)) == ("precious", ["x.csv"])
    assert files.save(TABLE, path) == [path, tmp_path / "x.csv.meta.json"]
    assert (path.read_text(), listed(tmp_path)) == ("a\n1\n2\n", ["x.csv", "x.csv.meta.json"])
    path.unlink()
    with pytest.raises(ExportError, match=r"x\.csv\.meta\.json is there already"):
        files.save(TABLE, path, overwrite=False)


@pytest.mark.skipif(os.name == "nt", reason="permissions of another kind")
def test_a_replaced_file_keeps_its_permissions_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.touch()
    path.chmod(0o640)
    files.save(TABLE, path)
    assert path.stat().st_mode & 0o777 == 0o640
    usual = tmp_path / "usual"
    usual.touch()
    files.save(TABLE, tmp_path / "new.json")
    assert (tmp_path / "new.json").stat().st_mode == usual.stat().st_mode


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
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
def test_a_device_is_written_and_never_replaced(tmp_path: Path) -> None:
    device = tmp_path / "x.json"
    device.symlink_to("/dev/full")
    with pytest.raises(ExportError, match="cannot be written: No space left on device"):
        files.save(TABLE, device)
    assert Path("/dev/full").is_char_device()
    assert listed(tmp_path) == ["x.json"]


@pytest.mark.parametrize("stopped", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["_write_new", "replace"])
def test_what_ends_the_writing_leaves_nothing_behind(
    stopped: BaseException, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious")
    write_new = writing._write_new

    def half(file: Path, content: bytes, like: Path) -> None:
        write_new(file, content[:3], like)
        raise stopped

    def renaming(_self: Path, _target: Path) -> None:
        raise stopped

    if at == "replace":
        monkeypatch.setattr(Path, "replace", renaming)
    else:
        monkeypatch.setattr(writing, "_write_new", half)
    with pytest.raises((ExportError, KeyboardInterrupt)):
        files.save(TABLE, path)
    assert (path.read_text(), listed(tmp_path)) == ("precious", ["x.csv"])


def test_no_table_stands_beside_the_provenance_of_another(
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
def test_a_file_that_is_kept_from_writing_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("precious")
    path.chmod(0o440)
    with pytest.raises(ExportError, match="cannot be written: Permission denied"):
        files.save(TABLE, path)
    assert path.read_text() == "precious"
