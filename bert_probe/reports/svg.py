"""Whether an SVG from an untrusted source is the picture that is drawn here."""

from __future__ import annotations

import base64
import io
import re
import struct
from typing import Final

from PIL import Image

_IMAGE: Final = re.compile('data:image/png;base64,([A-Za-z0-9+/=]+)"')
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CHUNK: Final = struct.Struct(">L4s")  # length of the content, type
_CHECKSUM_BYTES: Final = 4
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]{2,}")


def is_same_picture(stated: bytes, expected: bytes) -> bool:
    """Return whether two SVG files are equal.

    Images may be compressed in another way. In attributes, numbers with two decimals or more may differ by
    one unit in the last place: a line's opacity may be rounded the other way on another processor.
    """
    if stated == expected:
        return True
    if len(stated) > 4 * len(expected):
        return False
    try:
        sides = [content.decode() for content in (stated, expected)]
    except UnicodeDecodeError:
        return False
    images = [_IMAGE.findall(side) for side in sides]
    if len(images[0]) != len(images[1]) or not all(map(_is_same_image, *images)):
        return False
    tokens = [_IMAGE.sub('"', side).split("<") for side in sides]
    return len(tokens[0]) == len(tokens[1]) and all(map(_is_near, *tokens))


def _is_same_image(stated: str, expected: str) -> bool:
    if stated == expected:
        return True
    try:
        sides = [base64.b64decode(side, validate=True) for side in (expected, stated)]
        # Other chunks may hold an animation or a color profile. The size is in the header, which is equal: no
        # more pixels are unpacked than are drawn here.
        if _chunks(sides[0]) != _chunks(sides[1]):
            return False
        images = [Image.open(io.BytesIO(side), formats=["PNG"]) for side in sides]
        return images[0].tobytes() == images[1].tobytes()
    except (OSError, ValueError, SyntaxError, struct.error):
        return False


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return types and contents of a PNG's chunks; the compressed pixels as one chunk without content.

    Raises:
        struct.error: the last chunk is not complete.
    """
    chunks = [(b"", png[: len(_PNG)])]
    at = len(_PNG)
    while at < len(png):
        size, kind = _CHUNK.unpack_from(png, at)
        content = png[at + _CHUNK.size : at + _CHUNK.size + size]
        chunk = (kind, b"" if kind == b"IDAT" else content)
        if chunk != chunks[-1] or kind != b"IDAT":
            chunks.append(chunk)
        at += _CHUNK.size + size + _CHECKSUM_BYTES
    return chunks


def _is_near(stated: str, expected: str) -> bool:
    """Compare a tag and the text after it."""
    if stated == expected:
        return True
    (tag, end, text), (other_tag, other_end, other_text) = stated.partition(">"), expected.partition(">")
    numbers, others = _DECIMAL.findall(tag), _DECIMAL.findall(other_tag)
    return (
        (end, text) == (other_end, other_text)
        and _DECIMAL.sub("#", tag) == _DECIMAL.sub("#", other_tag)
        and all(map(_is_rounded, numbers, others))
    )


def _is_rounded(stated: str, expected: str) -> bool:
    places = max(len(number.partition(".")[2]) for number in (stated, expected))
    return abs(float(stated) - float(expected)) < 1.5 * 10.0**-places
