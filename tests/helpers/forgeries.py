"""Forged reports by an attacker who knows the format: every digest matches the forged content."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_probe.errors import ProbeError
from bert_probe.reports import page
from bert_probe.reports.numbers import NamedModels, ViewNumbers, ViewTolerances
from bert_probe.reports.report import MAX_BYTES
from bert_probe.reports.tables import ReportTable, digest
from bert_probe.reports.view_files import ModelReference, ViewFile

_LAST_LINE = re.compile(rb"<!-- SHA-256 of all above: [0-9a-f]{64} -->\n?\Z")

OWN_STATEMENTS = (
    r"title",
    r"made_with\.",
    r"views\.\d+\.note\.",
    r"views\.\d+\.provenance\.(device|libraries\b.*)$",
    r"views\.\d+\.view\.(page|address\b.*)$",
    r"views\.\d+\.(sha256|marks)\b",
)
"""Leaves of a report that cannot be recomputed, or that `sign` updates."""


@dataclass
class RememberedModels(NamedModels):
    """Models that cache each computed view, so that all forgeries of a report share the results."""

    numbers_by_view: dict[bytes, tuple[ViewNumbers, ViewTolerances]] = field(default_factory=dict)

    def computed(self, view: ViewFile, *_: Any) -> tuple[ViewNumbers, ViewTolerances]:
        key = view.to_bytes() + bytes([self.as_named])
        if key not in self.numbers_by_view:
            self.numbers_by_view[key] = NamedModels.computed(self, view)
        return self.numbers_by_view[key]


def opener_of(checkpoint: Any) -> Callable[[ModelReference], Any]:
    """Return a function that opens a checkpoint under any name."""
    return lambda _: checkpoint


def reseal(content: bytes) -> bytes:
    """Return a page with its digest updated to match its content."""
    body = _LAST_LINE.sub(b"", content)
    return body + f"<!-- SHA-256 of all above: {hashlib.sha256(body).hexdigest()} -->\n".encode()


def sign(stated: dict[str, Any]) -> dict[str, Any]:
    """Update the digests and checksums of every view, in place."""
    for view in stated["views"]:
        view["sha256"] |= {name: digest(view[name]) for name in view["sha256"] if name != "payloads"}
        view["marks"] = ReportTable.from_json(view["table"]).marks()
    return stated


def render(stated: dict[str, Any]) -> bytes:
    """Return the page that is rendered from forged data.

    Raises:
        Exception: any error that the forged data causes while it is rendered.
    """
    return page.render_page(sign(stated), MAX_BYTES).encode()


def zip_files(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP of files, with the manifest updated to match their content."""
    manifest = json.loads(files["manifest.json"])
    listed = {name: digest(content) for name, content in files.items() if name != "manifest.json"}
    manifest["files"] = {name: listed[name] for name in [*manifest["files"], *listed] if name in listed}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            serialized = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
            archive.writestr(name, serialized if name == "manifest.json" else content)
    return target.getvalue()


def unzip(content: bytes) -> dict[str, bytes]:
    """Return the files of a ZIP."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def mutate_bytes(content: bytes, lots: random.Random) -> bytes:
    """Return the content with a few bytes flipped, inserted or deleted, at an offset drawn by `lots`."""
    position, size = lots.randrange(len(content)), lots.choice((1, 1, 1, 2, 8, 200))
    new = lots.choice(
        (lots.randbytes(size), content[position : position + size][::-1], b"<!--", b" ", b"9" * size)
    )
    match lots.randrange(3):
        case 0:
            return content[:position] + new + content[position + len(new) :]
        case 1:
            return content[:position] + new + content[position:]
    return content[:position] + content[position + size :]


def mutate_elements(content: bytes, lots: random.Random) -> bytes:
    """Return a page with one element, drawn by `lots`, deleted, duplicated, hidden, moved or changed."""
    tokens = content.split(b"<")
    index, other = lots.randrange(1, len(tokens)), lots.randrange(1, len(tokens))
    token = tokens[index]
    match lots.randrange(6):
        case 0:
            tokens[index : index + 1] = []
        case 1:
            tokens[index : index + 1] = [token, token]
        case 2:
            tokens[index] = token.replace(b">", b" hidden>", 1)
        case 3:
            tokens[index], tokens[other] = tokens[other], token
        case 4:
            tokens[index] = token.partition(b">")[0] + b">0.5000"
        case 5:
            tokens[index] = b"!--" + token.replace(b">", b"-->", 1)
    return b"<".join(tokens)


def leaf_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every string, number and boolean in a JSON value."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaf_paths(part, (*path, name))
    else:
        yield path


def forgeable_paths(stated: dict[str, Any]) -> list[tuple[str | int, ...]]:
    """Return the paths of all leaves except the author's own statements, which cannot be verified."""
    own = re.compile("|".join(OWN_STATEMENTS))
    return [path for path in leaf_paths(stated) if not own.match(".".join(map(str, path)))]


def replace_leaf(stated: dict[str, Any], path: Sequence[str | int], lots: random.Random) -> dict[str, Any]:
    """Return a copy of a report's data with a different value, drawn by `lots`, at a path."""
    copy: dict[str, Any] = json.loads(json.dumps(stated))
    holder: Any = copy
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = other_value(holder[path[-1]], lots)
    return copy


def other_value(value: Any, lots: random.Random) -> Any:
    """Return a value of the type of `value` that differs from it by more than rounding, drawn by `lots`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.01 * (1 + abs(value))
    if isinstance(value, str):
        return value + lots.choice((" ", "x", "0", "<b>"))
    return "x"


def is_refused(verify: Callable[[bytes], Sequence[object]], content: bytes) -> bool:
    """Return whether verification refuses a report with a readable error or reports differences."""
    try:
        return bool(verify(content))
    except ProbeError:
        return True
