"""Tokens that are pieces of bytes, as text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def is_byte_level(tokenizer: Any) -> bool:
    """Whether a tokenizer's tokens are pieces of bytes, each written as a character."""
    return "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's byte alphabet (Radford et al. 2019): printable bytes stand for themselves, the
    others for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def from_bytes(token: str) -> str:
    """A byte-level token as text; bytes that are only part of a character as ⟨F0 9F⟩."""
    raw = _bytes(token)
    if raw is None:
        return token
    try:
        return raw.decode("utf-8").replace("\n", "⏎").replace("\t", "⇥")
    except UnicodeDecodeError:
        return f"⟨{raw.hex(' ').upper()}⟩"


def is_whole(token: str) -> bool:
    """Whether a byte-level token is made of whole characters."""
    raw = _bytes(token)
    try:
        return raw is None or bool(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _bytes(token: str) -> bytes | None:
    """What it stands for; None for a token that is no piece of bytes, as those are that were added."""
    table = _byte_of_character()
    if any(character not in table for character in token):
        return None
    return bytes(table[character] for character in token)
