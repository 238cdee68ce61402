"""The JSON files of a store, checked before anything relies on them: a store may be a stranger's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import StoreError
from bert_probe.text import strict_json

FORMAT, VERSION = "bert-probe corpus", 1
MANIFEST, SHARDS = "manifest.json", "shards"

_MOST_BYTES: Final = 100_000_000
"""Bytes of a JSON file that is read; a manifest has some 150 for each input."""

Check = tuple[str, Callable[[Any], bool]]
"""What a value has to be, for people, and the function that looks."""


def _whole(least: int, most: int) -> Check:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return f"a whole number from {least:,} to {most:,}", fits


def _optional(check: Check) -> Check:
    return f"{check[0]}, or null", lambda value: value is None or check[1](value)


_TEXT: Final[Check] = ("a text", lambda value: isinstance(value, str))
_OBJECT: Final[Check] = ("an object", lambda value: isinstance(value, dict))
_LIST: Final[Check] = ("a list", lambda value: isinstance(value, list))
_COUNT: Final = _whole(0, 2**53)

_MANIFEST: Final[Mapping[str, Check]] = {
    "model": _OBJECT,
    "model.model": _TEXT,
    "model.origin": _TEXT,
    "model.revision": _optional(_TEXT),
    "model.weights_sha256": _TEXT,
    "model.dtype": _TEXT,
    "sizes": _OBJECT,
    "sizes.layers": _whole(1, 1_000),
    "sizes.heads": _whole(1, 1_000),
    "sizes.hidden_size": _whole(1, 1_000_000),
    "sizes.max_tokens": _optional(_whole(1, 2**31)),
    "question": _OBJECT,
    "column": _optional(_TEXT),
    "inputs": _LIST,
    "records": _COUNT,
    "shard_rows": _COUNT,
    "shard_bytes": _COUNT,
}
_SHARD: Final[Mapping[str, Check]] = {
    "number": _whole(0, 10**9),
    "first": _whole(1, 2**53),
    **dict.fromkeys(("records", "rows", "tokens", "refusals"), _COUNT),
    "files": _OBJECT,
}
_FILE: Final[Mapping[str, Check]] = {"bytes": _COUNT, "sha256": _TEXT}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a store.

    Raises:
        StoreError: there is none, it is of another format or version, or a value is missing or of a wrong
            type.
    """
    file = folder / MANIFEST
    manifest = _read(file)
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} is no store of a corpus. Give a folder that corpus run has made.")
    if manifest.get("version") != VERSION:
        raise StoreError(
            f"{folder} has version {str(manifest.get('version'))[:20]} of a store, and this program reads "
            f"{VERSION}. Use the program that made it, or run the corpus again."
        )
    _check(file, manifest, _MANIFEST)
    return manifest


def read_shard(file: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of a shard.

    Args:
        tables: names of the tables of its store.

    Raises:
        StoreError: it is broken, or does not fit its store.
    """
    shard = _read(file)
    files = {f"files.{table}": _OBJECT for table in tables}
    sizes = {f"files.{table}.{name}": check for table in tables for name, check in _FILE.items()}
    _check(file, shard, {**_SHARD, **files, **sizes})
    if unknown := shard.keys() - _SHARD.keys():
        raise StoreError(f"{file} has an unknown member {min(unknown)[:60]!r}. {_REMEDY}")
    if file.stem != f"{shard['number']:05}" or shard["rows"] + shard["refusals"] != shard["records"]:
        raise StoreError(
            f"{file} contradicts itself: its number is not its name's, or its counts differ. {_REMEDY}"
        )
    return shard


_REMEDY: Final = "Copy the store again from where it was made, or run the corpus again."


def read_bytes(file: Path) -> bytes:
    """Return what a JSON file of a store holds.

    Raises:
        OSError: it cannot be read, or is not a regular file: a pipe or a device may have no end.
        StoreError: it is too large.
    """
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise StoreError(f"{file} has more than {_MOST_BYTES:,} bytes. {_REMEDY}")
    return content


def _read(file: Path) -> dict[str, Any]:
    try:
        content = strict_json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise StoreError(f"{file} is not there, or is broken. Give a folder that corpus run has made.")
    return content


def _check(file: Path, content: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for path, (expected, fits) in checks.items():
        value: Any = content
        *parents, name = path.split(".")
        for parent in parents:
            value = value[parent]  # an object, as its own check comes before
        if name not in value:
            raise StoreError(f"{file} has no {path}, which must be {expected}. {_REMEDY}")
        if not fits(value[name]):
            raise StoreError(
                f"{file} has {path} = {str(value[name])[:60]!r}, which must be {expected}. {_REMEDY}"
            )
