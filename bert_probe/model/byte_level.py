"""Readable text for byte-level tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def is_byte_level(tokenizer: Any) -> bool:
    """Return whether a tokenizer is byte-level: each byte is written as one character."""
    return "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's byte alphabet (Radford et al. 2019), character → byte.

    Printable bytes stand for themselves; the others map to the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    nonprintable = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(nonprintable)}


def from_bytes(token: str) -> str:
    """Decode a byte-level token; bytes of an incomplete character are shown as ⟨F0 9F⟩."""
    raw = _bytes(token)
    if raw is None:
        return token
    try:
        return raw.decode("utf-8").replace("\n", "⏎").replace("\t", "⇥")
    except UnicodeDecodeError:
        return f"⟨{raw.hex(' ').upper()}⟩"


def is_whole(token: str) -> bool:
    """Return whether a byte-level token consists of complete characters."""
    raw = _bytes(token)
    try:
        return raw is None or bool(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _bytes(token: str) -> bytes | None:
    """Return the bytes of a token; None for an added token, which is not byte-level."""
    table = _byte_of_character()
    if any(character not in table for character in token):
        return None
    return bytes(table[character] for character in token)
