"""Classify the tokens of a vocabulary by kind and script, and search the vocabulary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unicodedata import category
from weakref import WeakKeyDictionary

import re2
import regex

from bert_probe.errors import SelectionError
from bert_probe.model.encoding import SPACE, Encoder, from_bytes, is_byte_level, is_whole

SPECIAL, UNUSED, BYTES, CONTINUATION = "special", "unused", "bytes", "continuation"
DIGITS, CHARACTER, WORD, SIGNS = "digits", "character", "word", "signs"

KINDS = {
    WORD: "two or more letters at the beginning of a word",
    CONTINUATION: "continuation of a word",
    CHARACTER: "a single character that is not a digit",
    DIGITS: "digits only",
    SIGNS: "punctuation and symbols, possibly mixed with letters or digits",
    BYTES: "bytes of an incomplete character",
    SPECIAL: "tokens such as [CLS] and [MASK], which are added to the text or replace words",
    UNUSED: "reserved entries that have an embedding, but that the tokenizer never produces",
}
"""Descriptions of the kinds of vocabulary tokens. Each token has one kind; docs/methods.md has the rules."""

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
"""Names of the Unicode scripts that are distinguished. Letters of all other scripts count as "other"."""

_SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
_NO_SCRIPT_CHARACTER = regex.compile(r"\p{Script=Common}|\p{Script=Inherited}")
_UNUSED = regex.compile(r"[\[<|]+unused[-_ ]?\d+[|>\]]+|madeupword\d+", regex.IGNORECASE)
_BYTE = regex.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class BoundaryMarks:
    """The characters with which a tokenizer marks word boundaries.

    Attributes:
        continuing: prefix of a token that continues a word, such as ##; "" if there is no such prefix.
        space: character that represents the space before a token, Ġ or ▁; "" if there is no such character.
        is_byte_level: whether each character of a token represents a byte.
    """

    continuing: str
    space: str
    is_byte_level: bool

    @property
    def name(self) -> str:
        """Return "byte-level", "SentencePiece" or "WordPiece"; "no marks" if boundaries are not marked."""
        if self.is_byte_level:
            return "byte-level"
        return "SentencePiece" if self.space else "WordPiece" if self.continuing else "no marks"


@dataclass(frozen=True, eq=False)
class VocabularyTokens:
    """The tokens that have a row in the model's word embedding, in the order of their ids.

    Attributes:
        marks: the tokenizer's boundary marks.
        names: vocabulary string of each token; "" for a row without a token.
        texts: readable text of each token, without boundary marks.
        kinds: kind of each token, from `KINDS`.
        scripts: script of each token: one of `SCRIPTS`, "none" (no letters), "several" or "other".
        ids: id of each token, by vocabulary string.
    """

    marks: BoundaryMarks
    names: tuple[str, ...]
    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    scripts: tuple[str, ...]
    ids: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.names)


_CACHE: WeakKeyDictionary[Encoder, VocabularyTokens] = WeakKeyDictionary()
"""Classified vocabularies by encoder, cached because classifying 250,000 tokens takes a second."""


def vocabulary_tokens(encoder: Encoder, rows: int) -> VocabularyTokens:
    """Return the classified vocabulary of an encoder.

    Args:
        encoder: the encoder, whose tokenizer defines the vocabulary.
        rows: number of rows of the model's word embedding; tokens with higher ids are ignored.
    """
    vocabulary = _CACHE.get(encoder)
    if vocabulary is None or len(vocabulary) != rows:
        vocabulary = _CACHE[encoder] = _read(encoder.tokenizer, rows)
    return vocabulary


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
        text, is_start = (name, True) if number in special else read(name, marks)
        texts.append(text)
        kinds.append(SPECIAL if number in special else kind_of(name, text, is_start, marks))
        scripts.append(NO_SCRIPT if kinds[-1] in (SPECIAL, UNUSED, BYTES) else script_of(text))
    ids = {name: number for number, name in enumerate(names) if name}
    return VocabularyTokens(marks, tuple(names), tuple(texts), tuple(kinds), tuple(scripts), ids)


def marks_of(tokenizer: Any) -> BoundaryMarks:
    """Return the boundary marks of a tokenizer; slow tokenizers have no marks."""
    if not tokenizer.is_fast:
        return BoundaryMarks("", "", is_byte_level=False)
    backend = tokenizer.backend_tokenizer
    if is_byte_level(tokenizer):
        return BoundaryMarks("", "Ġ", is_byte_level=True)
    space = "▁" if "▁" in f"{backend.decoder!r}{backend.pre_tokenizer!r}" else ""
    continuing = getattr(backend.model, "continuing_subword_prefix", None) or ""
    return BoundaryMarks("" if space else continuing, space, is_byte_level=False)


def read(name: str, marks: BoundaryMarks) -> tuple[str, bool]:
    """Return the readable text of a token, and whether the token may start a word."""
    if marks.continuing:
        is_continuation = name.startswith(marks.continuing) and name != marks.continuing
        return (name.removeprefix(marks.continuing), False) if is_continuation else (name, True)
    if not marks.space or not name:
        return name, True
    decoded = from_bytes(name) if marks.is_byte_level else name.replace(marks.space, " ")
    return decoded.removeprefix(" ") or SPACE, decoded.startswith(" ")


def kind_of(name: str, text: str, begins: bool, marks: BoundaryMarks) -> str:
    """Return the kind of a token that is not special.

    Args:
        name: vocabulary string.
        text: readable text.
        begins: whether the token may be the start of a word.
        marks: the tokenizer's boundary marks.
    """
    if not name or (name[0] in "[<|m" and _UNUSED.fullmatch(name)):
        return UNUSED
    if (name[0] == "<" and _BYTE.fullmatch(name)) or (marks.is_byte_level and not is_whole(name)):
        return BYTES
    # A ## prefix always marks a continuation. A tokenizer with a space mark does not mark continuations, so a
    # token without the mark is a continuation only if it begins with a letter, a combining mark or a number.
    if not begins and (marks.continuing or category(text[0])[0] in "LMN"):
        return CONTINUATION
    if all(character.isdecimal() for character in text):
        return DIGITS
    if len(text) == 1:
        return CHARACTER
    return WORD if text.isalpha() or {category(character)[0] for character in text} <= {"L", "M"} else SIGNS


def script_of(text: str) -> str:
    """Return the script of a text's letters: one of `SCRIPTS`, "none" (no letters), "several" or "other"."""
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else NO_SCRIPT
    scripts = {_script(character) for character in text} - {NO_SCRIPT}
    return SEVERAL if len(scripts) > 1 else scripts.pop() if scripts else NO_SCRIPT


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    if category(character)[0] not in "LM" or _NO_SCRIPT_CHARACTER.match(character):
        return NO_SCRIPT
    match = _SCRIPT.match(character)
    return str(match.lastgroup) if match else OTHER


def visible(text: str) -> str:
    """Replace invisible and bidirectional control characters by their code points, such as ⟨U+202E⟩."""
    if text.isprintable():
        return text.replace(" ", SPACE) if text.isspace() else text
    return "".join(
        character if character.isprintable() else f"⟨U+{ord(character):04X}⟩" for character in text
    )


CONTAINS, PREFIX, EXACT, REGEX = "contains", "prefix", "exact", "regex"
MATCHES = (CONTAINS, PREFIX, EXACT, REGEX)
MAX_SEARCH_LENGTH = 200
"""Maximum length of a search text in characters."""
SECONDS = 5.0
"""Time limit for matching a regular expression against the whole vocabulary, in seconds."""
MAX_TOKEN_LENGTH = 10_000
"""Maximum length of the tokens that regular expressions are matched against, because a call of RE2 cannot be
interrupted."""
_PROGRAM_BYTES = 2**21
"""Memory limit of a compiled regular expression, in bytes. The last 128 expressions are cached."""

_SYNTAX = re.compile(
    r"\\Q.*?(?:\\E|$)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\.",
    re.DOTALL,
)
r"""Matches the elements of a regular expression that `_with_unicode` handles: quotations (\Q…\E), character
classes in brackets, and escapes."""
_UNICODE = {"w": r"\p{L}\p{M}\p{N}\p{Pc}", "d": r"\p{Nd}", "s": r"\s\p{Z}\x0b\x{85}"}
"""Unicode classes that replace the Perl classes \\w, \\d and \\s, which match only ASCII in RE2."""


def check(search: str, match: str, case: bool = False) -> None:
    """Check that a search in the vocabulary is valid.

    Args:
        search, match, case: see `matching`.

    Raises:
        SelectionError: the search text is too long, or is not a valid regular expression.
    """
    if len(search) > MAX_SEARCH_LENGTH:
        raise SelectionError(
            f"The search text has {len(search):,} characters, but at most {MAX_SEARCH_LENGTH} are "
            "allowed. Shorten the search text."
        )
    if match == REGEX:
        _compiled(search, case)


def matching(pieces: VocabularyTokens, search: str, match: str, case: bool) -> list[int]:
    """Return the ids of the tokens that match a search.

    The vocabulary strings are searched. If the tokenizer uses a mark such as Ġ or ▁ for spaces, the readable
    texts are searched instead, unless the search text contains the mark.

    Args:
        pieces: the vocabulary.
        search: the search text, or a regular expression.
        match: one of `MATCHES`.
        case: whether the search is case-sensitive.

    Raises:
        SelectionError: the regular expression takes too long, or `check` rejects the search.
    """
    check(search, match, case)
    if not search:
        return [*range(len(pieces))]
    space = pieces.marks.space
    texts = pieces.texts if space and space not in search else pieces.names
    if match == REGEX:
        return _match_regex(texts, search, case)
    target = search if case else search.casefold()
    predicates: dict[str, Callable[[str], bool]] = {
        CONTAINS: lambda text: target in text,
        PREFIX: lambda text: text.startswith(target),
        EXACT: lambda text: text == target,
    }
    matches = predicates[match]
    return [number for number, text in enumerate(texts) if matches(text if case else text.casefold())]


def _compiled(search: str, case: bool) -> Any:
    """Compile a regular expression with RE2, which needs linear time and limited memory."""
    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.case_sensitive = case
    options.never_capture = True  # capturing groups would take additional memory
    options.log_errors = False
    try:
        return re2.compile(_SYNTAX.sub(_with_unicode, search).encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        message = error.args[0].decode("utf-8", "replace")
        raise SelectionError(
            f"Invalid regular expression: {message}. The syntax is that of RE2: up to 1,000 repetitions, no "
            "lookaround and no backreferences. Correct the expression, or search for plain text."
        ) from None


def _with_unicode(unit: re.Match[str]) -> str:
    """Replace the Perl character classes in a match of `_SYNTAX` by Unicode classes, as in Python."""
    text = unit[0]
    if text.startswith("\\Q"):
        return text
    if text.startswith("["):
        return re.sub(r"\\(.)", _class_member, text, flags=re.DOTALL)
    if text == r"\Z":  # RE2 has another syntax for the end of the text
        return r"\z"
    members = _UNICODE.get(text[1].lower())
    if members is None:
        return text
    return f"[{members}]" if text[1].islower() else f"[^{members}]"


def _class_member(escaped: re.Match[str]) -> str:
    if escaped[1] == "D":
        return r"\P{Nd}"
    if escaped[1] in "WS":
        raise SelectionError(
            f"Invalid regular expression: {escaped[0]} is not allowed within [ ]. Use {escaped[0]} outside, "
            f"or [^{escaped[0].lower()}]."
        )
    return _UNICODE.get(escaped[1], escaped[0])


def _match_regex(texts: Sequence[str], search: str, case: bool) -> list[int]:
    max_length = max(map(len, texts), default=0)
    if max_length > MAX_TOKEN_LENGTH:
        raise SelectionError(
            f"This vocabulary has a token of {max_length:,} characters; regular expressions support at most "
            f"{MAX_TOKEN_LENGTH:,}. Search for plain text."
        )
    expression, end = _compiled(search, case), time.monotonic() + SECONDS
    ids = []
    for number, text in enumerate(texts):
        if time.monotonic() > end:
            raise SelectionError(
                f"This regular expression takes more than {SECONDS:g} s for {len(texts):,} tokens. Use "
                "fewer repetitions, or search for plain text."
            )
        if expression.search(text.encode("utf-8", "surrogatepass")):
            ids.append(number)
    return ids
