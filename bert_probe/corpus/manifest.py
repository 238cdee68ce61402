"""Read the JSON files of a store, and check every value in them, because a store may be untrusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import StoreError
from bert_probe.text import strict_json

FORMAT, VERSION = "bert-probe corpus", 2
MANIFEST, SHARDS = "manifest.json", "shards"

_MAX_BYTES: Final = 100_000_000
"""Maximum size of a JSON file in bytes. A manifest takes about 150 bytes per input file."""

Check = tuple[str, Callable[[Any], bool]]
"""Check of a value: a description of the allowed values for error messages, and a function that tests it."""


def _integer(low: int, high: int) -> Check:
    def is_valid(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return f"an integer from {low:,} to {high:,}", is_valid


def _optional(check: Check) -> Check:
    return f"{check[0]}, or null", lambda value: value is None or check[1](value)


_TEXT: Final[Check] = ("a text", lambda value: isinstance(value, str))
_OBJECT: Final[Check] = ("an object", lambda value: isinstance(value, dict))
_LIST: Final[Check] = ("a list", lambda value: isinstance(value, list))
_COUNT: Final = _integer(0, 2**53)

_MANIFEST: Final[Mapping[str, Check]] = {
    "model": _OBJECT,
    "model.model": _TEXT,
    "model.origin": _TEXT,
    "model.revision": _optional(_TEXT),
    "model.weights_sha256": _TEXT,
    "model.dtype": _TEXT,
    "sizes": _OBJECT,
    "sizes.layers": _integer(1, 1_000),
    "sizes.heads": _integer(1, 1_000),
    "sizes.hidden_size": _integer(1, 1_000_000),
    "sizes.max_tokens": _optional(_integer(1, 2**31)),
    "question": _OBJECT,
    "column": _optional(_TEXT),
    "inputs": _LIST,
    "records": _COUNT,
    "shard_rows": _COUNT,
    "shard_bytes": _COUNT,
}
_SHARD: Final[Mapping[str, Check]] = {
    "number": _integer(0, 10**9),
    "first": _integer(1, 2**53),
    **dict.fromkeys(("records", "rows", "tokens", "refusals"), _COUNT),
    "files": _OBJECT,
}
_FILE: Final[Mapping[str, Check]] = {"bytes": _COUNT, "sha256": _TEXT}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the checked manifest of a store.

    Raises:
        StoreError: the manifest does not exist or has another format or version, or a value is missing or
            invalid.
    """
    file = folder / MANIFEST
    manifest = _read(file)
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a corpus store. Give a folder that corpus run has written.")
    if manifest.get("version") != VERSION:
        raise StoreError(
            f"{folder} has store version {str(manifest.get('version'))[:20]}, but this program reads version "
            f"{VERSION}. Use the version that wrote it, or run the corpus again."
        )
    _check(file, manifest, _MANIFEST)
    return manifest


def read_shard(file: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked description of a shard, with the fields of `Shard`.

    Args:
        file: the shard's JSON file.
        tables: schemas of the tables that the store must have, by table name.

    Raises:
        StoreError: the file is missing or broken, or does not match its name or the tables of the store.
    """
    shard = _read(file)
    files = {f"files.{table}": _OBJECT for table in tables}
    sizes = {f"files.{table}.{name}": check for table in tables for name, check in _FILE.items()}
    _check(file, shard, {**_SHARD, **files, **sizes})
    if unknown := shard.keys() - _SHARD.keys():
        raise StoreError(f"{file} has an unknown key {min(unknown)[:60]!r}. {_REMEDY}")
    if file.stem != f"{shard['number']:05}" or shard["rows"] + shard["refusals"] != shard["records"]:
        raise StoreError(
            f"{file} is inconsistent: its number does not match its name, or its counts do not add up. "
            f"{_REMEDY}"
        )
    return shard


_REMEDY: Final = "Copy the store again from its original location, or run the corpus again."


def read_bytes(file: Path) -> bytes:
    """Return the content of a JSON file of a store.

    Raises:
        OSError: the file cannot be read, or is not a regular file. Pipes and devices are rejected, as they
            may never end.
        StoreError: the file is too large.
    """
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise StoreError(f"{file} is larger than {_MAX_BYTES:,} bytes. {_REMEDY}")
    return content


def _read(file: Path) -> dict[str, Any]:
    try:
        content = strict_json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise StoreError(f"{file} is missing or broken. Give a folder that corpus run has written.")
    return content


def _check(file: Path, content: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for path, (expected, is_valid) in checks.items():
        value: Any = content
        *parents, name = path.split(".")
        for parent in parents:
            value = value[parent]  # a parent is an object, because it was checked before
        if name not in value:
            raise StoreError(f"{file} has no {path}, which must be {expected}. {_REMEDY}")
        if not is_valid(value[name]):
            raise StoreError(
                f"{file} has {path} = {str(value[name])[:60]!r}, which must be {expected}. {_REMEDY}"
            )
