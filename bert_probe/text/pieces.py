"""The pieces of a vocabulary: what each of them is, told by how its tokenizer writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unicodedata import category
from weakref import WeakKeyDictionary

import regex

from bert_probe.model.byte_level import from_bytes, is_byte_level, is_whole
from bert_probe.model.encoding import SPACE, Encoder

SPECIAL, UNUSED, BYTES, CONTINUATION = "special", "unused", "bytes", "continuation"
DIGITS, CHARACTER, WORD, SIGNS = "digits", "character", "word", "signs"

KINDS = {
    WORD: "letters only, two or more, at the beginning of a word",
    CONTINUATION: "goes on with a word",
    CHARACTER: "a single character that is no digit",
    DIGITS: "digits only",
    SIGNS: "punctuation and symbols, also mixed with letters or digits",
    BYTES: "bytes that are only a part of a character",
    SPECIAL: "added around the text, or put in the place of words",
    UNUSED: "kept free: of the model's table, but no text becomes it",
}
"""What a piece may be; each is of one kind. See docs/methods.md for how it is told."""

NO_SCRIPT, SEVERAL, OTHER = "none", "several", "other"
SCRIPTS = (
    "Latin",
    "Cyrillic",
    "Greek",
    "Arabic",
    "Hebrew",
    "Han",
    "Hiragana",
    "Katakana",
    "Hangul",
    "Devanagari",
    "Bengali",
    "Gurmukhi",
    "Gujarati",
    "Oriya",
    "Tamil",
    "Telugu",
    "Kannada",
    "Malayalam",
    "Sinhala",
    "Thai",
    "Lao",
    "Khmer",
    "Myanmar",
    "Tibetan",
    "Georgian",
    "Armenian",
    "Ethiopic",
    "Syriac",
    "Thaana",
    "Mongolian",
    "Bopomofo",
    "Cherokee",
    "Canadian_Aboriginal",
    "Tifinagh",
    "Nko",
    "Javanese",
    "Balinese",
    "Gothic",
    "Coptic",
    "Runic",
    "Ogham",
    "Yi",
)
"""Of Unicode, by their names there; a letter of any other is of the script "other"."""

_SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
_OF_NONE = regex.compile(r"\p{Script=Common}|\p{Script=Inherited}")
_FREE = regex.compile(r"[\[<|]+unused[-_ ]?\d+[|>\]]+|madeupword\d+", regex.IGNORECASE)
_BYTE = regex.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class BoundaryMarks:
    """How a tokenizer writes where words begin.

    Attributes:
        continuing: stands before a piece that goes on with a word, as ## does; "" where there is none.
        space: stands for the space before a piece, Ġ or ▁; "" where there is none.
        of_bytes: pieces are of bytes, each written as a character.
    """

    continuing: str
    space: str
    of_bytes: bool

    @property
    def name(self) -> str:
        """What such pieces are called."""
        if self.of_bytes:
            return "byte-level"
        return "SentencePiece" if self.space else "WordPiece" if self.continuing else "no marks"


@dataclass(frozen=True, eq=False)
class VocabularyTokens:
    """All pieces that a model has a row for, by their ids.

    Attributes:
        marks: how the tokenizer writes where words begin.
        names: as the vocabulary has them; "" for a row that no piece has.
        texts: as a person reads them, without the mark of a word's beginning or of its going on.
        kinds: of `KINDS`.
        scripts: of `SCRIPTS`, or "none" without a letter, "several", "other".
        ids: the other way round.
    """

    marks: BoundaryMarks
    names: tuple[str, ...]
    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    scripts: tuple[str, ...]
    ids: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.names)


_KNOWN: WeakKeyDictionary[Encoder, VocabularyTokens] = WeakKeyDictionary()
"""What was read of a vocabulary is kept as long as it: 250,000 pieces take a second."""


def pieces_of(encoder: Encoder, rows: int) -> VocabularyTokens:
    """The pieces of a vocabulary.

    Args:
        rows: of the model's table of words; a piece beyond them cannot be read by it.
    """
    known = _KNOWN.get(encoder)
    if known is None or len(known) != rows:
        known = _KNOWN[encoder] = _read(encoder.tokenizer, rows)
    return known


def _read(tokenizer: Any, rows: int) -> VocabularyTokens:
    marks = marks_of(tokenizer)
    names = [""] * rows
    for name, number in tokenizer.get_vocab().items():
        if number < rows:
            names[number] = name
    added = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
    texts, kinds, scripts = [], [], []
    for number, name in enumerate(names):
        text, begins = (name, True) if number in special else read(name, marks)
        texts.append(text)
        kinds.append(SPECIAL if number in special else kind_of(name, text, begins, marks))
        scripts.append(NO_SCRIPT if kinds[-1] in (SPECIAL, UNUSED, BYTES) else script_of(text))
    ids = {name: number for number, name in enumerate(names) if name}
    return VocabularyTokens(marks, tuple(names), tuple(texts), tuple(kinds), tuple(scripts), ids)


def marks_of(tokenizer: Any) -> BoundaryMarks:
    """How a fast tokenizer writes where words begin."""
    backend = tokenizer.backend_tokenizer
    if is_byte_level(tokenizer):
        return BoundaryMarks("", "Ġ", of_bytes=True)
    space = "▁" if "▁" in f"{backend.decoder!r}{backend.pre_tokenizer!r}" else ""
    continuing = getattr(backend.model, "continuing_subword_prefix", None) or ""
    return BoundaryMarks("" if space else continuing, space, of_bytes=False)


def read(name: str, marks: BoundaryMarks) -> tuple[str, bool]:
    """A piece as a person reads it, and whether it may begin a word: by its mark, or for want of one."""
    if marks.continuing:
        going_on = name.startswith(marks.continuing) and name != marks.continuing
        return (name.removeprefix(marks.continuing), False) if going_on else (name, True)
    if not marks.space or not name:
        return name, True
    written = from_bytes(name) if marks.of_bytes else name.replace(marks.space, " ")
    return written.removeprefix(" ") or SPACE, written.startswith(" ")


def kind_of(name: str, text: str, begins: bool, marks: BoundaryMarks) -> str:
    """What a piece is that is not special, from its name, its text, and whether it begins a word."""
    if not name or (name[0] in "[<|m" and _FREE.fullmatch(name)):
        return UNUSED
    if (name[0] == "<" and _BYTE.fullmatch(name)) or (marks.of_bytes and not is_whole(name)):
        return BYTES
    # With ## the vocabulary says so; a missing space also stands before every sign.
    if not begins and (marks.continuing or category(text[0])[0] in "LMN"):
        return CONTINUATION
    if all(character.isdecimal() for character in text):
        return DIGITS
    if len(text) == 1:
        return CHARACTER
    return WORD if text.isalpha() or {category(one)[0] for one in text} <= {"L", "M"} else SIGNS


def script_of(text: str) -> str:
    """The script of a text's letters: one of `SCRIPTS`, "none" without any, "several", "other"."""
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else NO_SCRIPT
    found = {_script(character) for character in text} - {NO_SCRIPT}
    return SEVERAL if len(found) > 1 else found.pop() if found else NO_SCRIPT


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    if category(character)[0] not in "LM" or _OF_NONE.match(character):
        return NO_SCRIPT
    found = _SCRIPT.match(character)
    return str(found.lastgroup) if found else OTHER


def visible(text: str) -> str:
    """A piece's text with what cannot be seen, or turns writing around, by its number: ⟨U+202E⟩."""
    if text.isprintable():
        return text.replace(" ", SPACE) if text.isspace() else text
    return "".join(one if one.isprintable() else f"⟨U+{ord(one):04X}⟩" for one in text)
