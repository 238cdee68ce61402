"""Sentences whose words have tags, and heads where a treebank gives them: CoNLL and CoNLL-U.

CoNLL has a word a line, its tag in the last column, and a blank line between sentences. CoNLL-U (Nivre et al.
2020) has ten columns, of which word, UPOS, head, relation and SpaceAfter are read.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol, cast

from conllu import parser
from conllu.exceptions import ParseException

from bert_probe.errors import EmptyTextError, ShapeError, TextError
from bert_probe.text.formats import CONLL, CONLLU, checked
from bert_probe.text.sentence_files import MAX_SENTENCES, lines_of, opened
from bert_probe.text.truncation import truncate_text
from bert_probe.text.validation import ValidationErrors

MAX_WORDS = 2_000_000
"""In a file: a line may have only a few bytes, and a word takes several hundred."""
ROOT = -1
"""Head of the word that has none."""

_COMMENT = re.compile(r"# ?[\w.:-]+ = ")
"""In CoNLL "#" may be a word, too."""
_COLUMNS = 10


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence word by word.

    Attributes:
        words: as written.
        tags: one for each word; UPOS in CoNLL-U.
        heads: index of each word's syntactic head, from 0; `ROOT` where it has none. Empty without a tree.
        relations: of each word to its head. Empty without a tree.
        text: what the file says it is, where that holds its words; else these, joined.
        spans: of each word in the text, start and end. Words of one contracted token may share its span.
        about: what comments say of it, such as its genre.
        line: of its first word, from 1.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    text: str
    spans: tuple[tuple[int, int], ...]
    about: Mapping[str, str] = field(hash=False)
    line: int

    def __post_init__(self) -> None:
        count = len(self.words)
        tree = {len(self.heads), len(self.relations)}
        if {len(self.tags), len(self.spans)} != {count} or tree not in ({0}, {count}):
            raise ShapeError(f"{count} words need as many tags and spans, and as many heads or none.")


def read_tagged_sentences(file: str | Path, as_named: bool = False) -> tuple[TaggedSentence, ...]:
    """The sentences of a file: CoNLL-U where it ends in .conllu, else CoNLL; packed where .gz follows.

    Args:
        as_named: read the file as its ending says, even if it looks like another format.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, larger than the bounds of `sentence_files`, looks
            like another format, or has faults: these are told together, by line.
        EmptyTextError: nothing in it.
    """
    with opened(file) as (stream, name):
        return _read(stream, name, as_named)


def parse_tagged_sentences(content: bytes, name: str, as_named: bool = False) -> tuple[TaggedSentence, ...]:
    """The sentences in a file's bytes; see `read_tagged_sentences`.

    Args:
        name: of the file; its ending tells CoNLL-U from CoNLL.

    Raises:
        TextError, EmptyTextError: as `read_tagged_sentences`.
    """
    return _read(io.BytesIO(content), name, as_named)


def _read(stream: BinaryIO, name: str, as_named: bool) -> tuple[TaggedSentence, ...]:
    bare = name.lower().removesuffix(".gz")
    if bare == name.lower():
        return _sentences(stream, name, bare.endswith(".conllu"), as_named)
    try:
        with gzip.open(stream) as unpacked:
            return _sentences(cast(BinaryIO, unpacked), name, bare.endswith(".conllu"), as_named)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"{name} cannot be unpacked: {error}. Pack it with gzip again.") from None


def _sentences(stream: BinaryIO, name: str, treebank: bool, as_named: bool) -> tuple[TaggedSentence, ...]:
    written = checked(lines_of(stream, name), name, CONLLU if treebank else CONLL, as_named)
    faults = ValidationErrors(name)
    reader = block_reader(treebank)
    found: list[TaggedSentence] = []
    for block in _blocks(written, name):
        sentence = reader.sentence(block, faults)
        if sentence is None:
            continue
        found.append(sentence)
        if len(found) > MAX_SENTENCES:
            raise TextError(f"{name} holds more than {MAX_SENTENCES:,} sentences. Give a part of it.")
    faults.check()
    if not found:
        raise EmptyTextError(f"{name} holds no sentences. Write a word and its tag on each line.")
    return tuple(found)


def _blocks(written: Iterator[str], name: str) -> Iterator[list[tuple[int, str]]]:
    """Lines between blank ones, each with its number."""
    block: list[tuple[int, str]] = []
    count = 0
    for number, line in enumerate(written, 1):
        if line.strip():
            count += 1
            if count > MAX_WORDS:
                raise TextError(f"{name} holds more than {MAX_WORDS:,} words. Give a part of it.")
            block.append((number, line.rstrip("\n")))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _comment(line: str, about: dict[str, str]) -> None:
    about.update((key, value) for key, value in parser.parse_comment_line(line) if value)


class BlockReader(Protocol):
    """Reads the sentences of a file, one after another."""

    def sentence(self, block: list[tuple[int, str]], faults: ValidationErrors) -> TaggedSentence | None:
        """What the lines of a block say; None where they hold no words.

        Args:
            block: lines, each with its number.
            faults: to which those of the block are added; the sentence is whole where none are.
        """


def block_reader(treebank: bool) -> BlockReader:
    """A reader of CoNLL-U, or else of CoNLL, for one file."""
    return _ConlluReader() if treebank else _ConllReader()


class _ConllReader:
    """Reads CoNLL."""

    def __init__(self) -> None:
        self._columns: int | None = None

    def sentence(self, block: list[tuple[int, str]], faults: ValidationErrors) -> TaggedSentence | None:
        words: list[str] = []
        tags: list[str] = []
        about: dict[str, str] = {}
        first = 0
        for line, text in block:
            if not words and _COMMENT.match(text):
                _comment(text, about)
                continue
            columns = text.split("\t") if "\t" in text else re.split(" +", text.strip(" "))
            columns = [column.strip() for column in columns]
            if columns[0] == "-DOCSTART-":
                continue
            if self._are_right(line, columns, faults):
                first = first or line
                words.append(columns[0])
                tags.append(columns[-1])
        if not words:
            return None
        text, spans = _joined(words, [True] * len(words))
        return TaggedSentence(tuple(words), tuple(tags), (), (), text, spans, MappingProxyType(about), first)

    def _are_right(self, line: int, columns: Sequence[str], faults: ValidationErrors) -> bool:
        if len(columns) < 2 or not columns[-1]:
            faults.add(line, f"“{truncate_text(columns[0])}” has no tag, in a column after the word")
            return False
        if not columns[0]:
            faults.add(line, f"tag {truncate_text(columns[-1])} has no word, in a column before it")
            return False
        # A word with a space in it would else lend its second half to be a tag.
        self._columns = self._columns or len(columns)
        if len(columns) != self._columns:
            faults.add(line, f"{len(columns)} columns, where lines before have {self._columns}")
            return False
        return True


@dataclass
class _WordLine:
    """A word line of CoNLL-U: where it stands, what it says, and whether a space follows."""

    line: int
    form: str
    tag: str
    head: int | None
    relation: str
    space: bool


@dataclass
class _SentenceLines:
    """What the lines of a sentence say.

    Attributes:
        contracted: of a token that holds several words: index of the first, how many, form, space after.
    """

    words: list[_WordLine] = field(default_factory=list)
    contracted: list[tuple[int, int, str, bool]] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)


class _ConlluReader:
    """Reads CoNLL-U."""

    def sentence(self, block: list[tuple[int, str]], faults: ValidationErrors) -> TaggedSentence | None:
        found, before = _SentenceLines(), faults.count
        for line, text in block:
            if text.startswith("#"):
                _comment(text, found.about)
            else:
                self._word(line, text, found, faults)
            if faults.count > before:  # the numbers of all words after it would be faults too
                return None
        words = found.words
        self._check_tree(words, faults)
        if faults.count > before or not words:
            return None
        text, spans = _placed(found)
        tree = words[0].head is not None
        return TaggedSentence(
            tuple(word.form for word in words),
            tuple(word.tag for word in words),
            tuple(word.head - 1 for word in words if word.head is not None),
            tuple(word.relation for word in words) if tree else (),
            text,
            spans,
            MappingProxyType({key: value for key, value in found.about.items() if key != "text"}),
            words[0].line,
        )

    def _word(self, line: int, text: str, found: _SentenceLines, faults: ValidationErrors) -> None:
        columns = text.split("\t")
        if len(columns) != _COLUMNS:
            faults.add(line, f"{len(columns)} columns with tabs between, where CoNLL-U has {_COLUMNS}")
            return
        number = head = None
        with suppress(ParseException, ValueError):  # a ValueError of more digits than Python reads
            head = parser.parse_int_value(columns[6])
            number = parser.parse_id_value(columns[0])
        if number is None:
            told = f"“{truncate_text(columns[0])}” with head “{truncate_text(columns[6])}”"
            faults.add(line, f"{told}, where a word and its head have numbers")
            return
        form, tag, relation = columns[1], columns[3], columns[7]
        space = "SpaceAfter=No" not in columns[9].split("|")
        if isinstance(number, tuple):
            # An empty node, 8.1, stands for what is not written.
            if number[1] == "-":
                found.contracted.append((number[0] - 1, number[2] - number[0] + 1, form, space))
            return
        if number != len(found.words) + 1:
            faults.add(line, f"word {number}, where word {len(found.words) + 1} was due")
            return
        if not form.strip() or not tag.strip():
            faults.add(line, "a word without a form or without a tag; _ is for what there is none of")
            return
        found.words.append(_WordLine(line, form, tag, head, relation, space))

    def _check_tree(self, words: list[_WordLine], faults: ValidationErrors) -> None:
        if all(word.head is None for word in words):
            return
        before = faults.count
        for number, word in enumerate(words, 1):
            if word.head is None:
                faults.add(word.line, "no head, where other words of its sentence have one")
            elif not 0 <= word.head <= len(words):
                faults.add(word.line, f"head {word.head} of a sentence of {len(words)} words")
            elif word.head == number:
                faults.add(word.line, "a word that is its own head")
        if faults.count == before:
            turning = _circle([word.head or 0 for word in words])
            if turning is not None:
                faults.add(words[turning].line, "its heads go round in a circle and reach no root")


def _circle(heads: list[int]) -> int | None:
    """Index of a word on a circle of heads, which count from 1, with 0 for none; None if there is none."""
    settled = [False] * len(heads)
    for start in range(len(heads)):
        way: set[int] = set()
        place = start
        while not settled[place]:
            if place in way:
                return place
            way.add(place)
            if not heads[place]:
                break
            place = heads[place] - 1
        for one in way:
            settled[one] = True
    return None


def _placed(found: _SentenceLines) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text of a sentence, and the span of each of its words."""
    words = found.words
    contracted = {
        start: (count, form, space)
        for start, count, form, space in found.contracted
        if start + count <= len(words)
    }
    written: list[tuple[int, str, bool]] = []  # number of words, form, space after
    place = 0
    while place < len(words):
        one = contracted.get(place, (1, words[place].form, words[place].space))
        written.append(one)
        place += one[0]
    text = found.about.get("text", "")
    spans = _found_in(text, [form for _, form, _ in written])
    if spans is None:
        text, spans = _joined([form for _, form, _ in written], [space for _, _, space in written])
    placed: list[tuple[int, int]] = []
    for (count, form, _), (start, end) in zip(written, spans, strict=True):
        parts = [word.form for word in words[len(placed) : len(placed) + count]]
        if "".join(parts) == form:  # can + not
            for part in parts:
                placed.append((start, start + len(part)))
                start += len(part)
        else:  # de + el, written del
            placed += [(start, end)] * count
    return text, tuple(placed)


def _found_in(text: str, forms: Sequence[str]) -> tuple[tuple[int, int], ...] | None:
    """The span of each form in a text that holds them one after another, and nothing else but spaces."""
    spans, place = [], 0
    for form in forms:
        while place < len(text) and text[place].isspace():
            place += 1
        if not text.startswith(form, place):
            return None
        spans.append((place, place + len(form)))
        place += len(form)
    return None if text[place:].strip() else tuple(spans)


def _joined(forms: Sequence[str], spaces: Sequence[bool]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Forms in a row, with a space after some, and the span of each."""
    text, spans = "", []
    for form, space in zip(forms, spaces, strict=True):
        spans.append((len(text), len(text) + len(form)))
        text += form + " " * space
    return text.rstrip(" "), tuple(spans)
