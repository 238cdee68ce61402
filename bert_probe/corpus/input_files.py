"""Files that are meant by a name, a folder or a pattern."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bert_probe.corpus.formats.endings import LINES, PARQUET, ending_of
from bert_probe.corpus.lines import PACKED, opened, reason_of
from bert_probe.errors import EmptyTextError, TextError

ENDINGS = (*LINES, PARQUET)
"""Of the files that are taken from folders; all but the last may be followed by one of `PACKED`."""

_MARKS = frozenset("*?[")


def meant(given: str | Path) -> Iterator[tuple[str, Path]]:
    """Name and path of each file that is meant.

    Raises:
        TextError: it cannot be opened; EmptyTextError: there is none.
    """
    path = Path(given)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {reason_of(error)}. Check the path.") from None
    if is_folder:
        found = _within(path, path)
        lacking = f"{path} holds no file"
    elif "\0" not in str(path) and not os.path.lexists(path) and _MARKS & set(str(path)):
        found = _matching(path)
        lacking = f"{path} matches no file"
    else:
        with opened(path):
            pass
        yield str(given), path
        return
    if not found:
        endings = f"{', '.join(ENDINGS)}, packed with {' or '.join(PACKED)} or not"
        raise EmptyTextError(f"{lacking} that ends in {endings}. Check it, or name a file itself.")
    yield from sorted((one.relative_to(base).as_posix(), one) for base, one in found)


def _within(folder: Path, base: Path) -> list[tuple[Path, Path]]:
    """The files of a folder at any depth, each with the folder that its name begins in."""

    def refuse(error: OSError) -> None:
        raise TextError(f"{error.filename} cannot be opened: {reason_of(error)}. Check the path.") from None

    found = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        paths = (Path(place, file) for file in files if not file.startswith("."))
        found += [(base, path) for path in paths if ending_of(path)]
    return found


def _matching(pattern: Path) -> list[tuple[Path, Path]]:
    """The files that a pattern matches, and those of folders that it matches."""
    fixed = next(place for place, part in enumerate(pattern.parts) if _MARKS & set(part))
    base = Path(*pattern.parts[:fixed])
    try:
        matches = list(base.glob("/".join(pattern.parts[fixed:])))
    except (OSError, ValueError) as error:
        raise TextError(f"{pattern} is no pattern that can be looked for: {reason_of(error)}.") from None
    found = []
    for path in matches:
        if any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        if path.is_dir() and not path.is_symlink():
            found += _within(path, base)
        elif ending_of(path):
            found.append((base, path))
    return found
