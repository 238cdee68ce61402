"""What travels to a browser: named arrays and a description, in one piece laid out as safetensors is.

Eight bytes for the header's length, the header as JSON, then the arrays, which begin at a multiple of eight:
a browser reads them where they lie. The description is JSON in an array of its own; within the header's
metadata each of its quotation marks would be written twice. `js/core/payload.js` is the other end.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bert_probe.text import strict_json

DESCRIPTION = "view"
"""Name of the array that holds the description."""

PLANES = 4
"""Bytes of most numbers: the length of a payload is a multiple of it."""


def packed(described: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """One payload; the same for the same arguments, so that nothing is sent that has not changed."""
    # safetensors writes the bytes as they lie in memory.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    written = _as_json(described)
    written += b" " * (-(len(written) + sum(array.nbytes for array in whole.values())) % PLANES)
    return bytes(save({**whole, DESCRIPTION: np.frombuffer(written, np.uint8)}))


def _as_json(described: Mapping[str, object]) -> bytes:
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    # Half of a pair, which a text from a file may hold, has no UTF-8: it goes as an escape.
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()


def unpacked(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Description and arrays of a payload.

    Raises:
        ValueError: it is none.
    """
    try:
        arrays = load(payload)
        written = arrays.pop(DESCRIPTION).tobytes()
        described: dict[str, Any] = json.loads(written)
        header = strict_json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    except (SafetensorError, KeyError, RecursionError) as error:
        raise ValueError(f"This is no payload: {error}.") from None
    if not isinstance(described, dict):
        raise ValueError("This is no payload: its description is not an object.")
    # A browser must read the same arrays and description, so each may be written in one way only.
    if header.keys() != {*arrays, DESCRIPTION} or written.rstrip(b" ") != _as_json(described):
        raise ValueError("This is no payload: its description is written in another way.")
    return described, arrays


class EmbeddedPayload(NamedTuple):
    """A payload within a page, as small as it gets without losing a bit; `js/core/page.js` reads it.

    Attributes:
        planes: of bytes: all first bytes of what is so long, then all second ones, and so on.
        length: of what the text stands for, in bytes.
        text: these, deflated, five letters for four bytes.
    """

    planes: int
    length: int
    text: str


_LETTERS = str.maketrans("&<>", ",./")
"""In place of the letters of base 85 that HTML would have to escape."""


def as_text(payload: bytes) -> EmbeddedPayload:
    """A payload as text. Numbers have bytes alike at the same places: together these deflate better."""
    ways = [(_deflated(payload), 1)]
    if len(payload) % PLANES == 0:
        ways.append((_deflated(np.frombuffer(payload, np.uint8).reshape(-1, PLANES).T.tobytes()), PLANES))
    small, planes = min(ways, key=lambda way: len(way[0]))
    return EmbeddedPayload(
        planes, len(small), base64.b85encode(small, pad=True).decode("ascii").translate(_LETTERS)
    )


def _deflated(content: bytes) -> bytes:
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return deflate.compress(content) + deflate.flush()


MOST_BYTES: Final = 256_000_000
"""Of a payload that is read from a page: a few letters may stand for very many bytes."""


def of_text(written: EmbeddedPayload, most: int = MOST_BYTES) -> bytes:
    """Return the payload that `as_text` wrote.

    Refuses what a browser would read in another way: foreign letters, bytes after the end, a missing end.

    Args:
        most: bytes that it may have.

    Raises:
        ValueError: `as_text` does not write such a text, or it stands for more bytes.
    """
    planes, length, letters = written
    blocks, rest = divmod(len(letters), 5)
    if planes not in (1, PLANES) or rest or not 4 * blocks - 4 < length <= 4 * blocks:
        raise ValueError("This is no payload.")
    if any(letter in letters for letter in "&<>"):
        raise ValueError("This is no payload: it has letters of another alphabet.")
    small = base64.b85decode(letters.translate(_BACK))
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(small[:length], most + 1)
    except zlib.error as error:
        raise ValueError(f"This is no payload: {error}.") from None
    if len(content) > most:
        raise ValueError(f"This payload is larger than {most:,} bytes.")
    if not inflate.eof or inflate.unused_data or any(small[length:]) or len(content) % planes:
        raise ValueError("This is no payload.")
    return np.frombuffer(content, np.uint8).reshape(planes, -1).T.tobytes()


_BACK = str.maketrans(",./", "&<>")
