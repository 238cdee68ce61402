"""Read tagged sentences from CoNLL files, and sentences with dependency trees from CoNLL-U files.

CoNLL has one word per line with the tag in the last column, and blank lines between sentences. CoNLL-U (Nivre
et al. 2020) has ten columns, of which ID, form, UPOS, head, relation and MISC (SpaceAfter) are used.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

import numpy as np
from conllu import parser
from conllu.exceptions import ParseException

from bert_probe.errors import EmptyTextError, ShapeError, TextError
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, read_only
from bert_probe.text.formats import CONLL, CONLLU, ValidationErrors, check_format, label_error
from bert_probe.text.sentence_files import MAX_SENTENCES, lines_of, open_file, unpack
from bert_probe.text.words import Unit, WordLens, truncate_text

MAX_WORDS = 2_000_000
"""Maximum number of words in a file. A word takes several hundred bytes of memory, even if it is short."""
ROOT = -1
"""Value that marks the root of a dependency tree, which has no head."""

_COMMENT = re.compile(r"# ?[\w.:-]+ = ")
"""Matches the start of a comment, but not a CoNLL line in which "#" is a word."""
_COLUMNS = 10


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with one tag per word, and optionally a dependency tree.

    Attributes:
        words: the words as written in the file.
        tags: one tag per word; the UPOS tag in CoNLL-U.
        heads: index of each word's syntactic head, from 0, or `ROOT`. Empty if there is no tree.
        relations: dependency relation of each word to its syntactic head. Empty if there is no tree.
        text: the text of the sentence in the file if it matches the words, otherwise the words joined by
            spaces.
        spans: start and end of each word in the text. The words of a contracted token may share its span.
        metadata: values from comments, such as the genre.
        line: line number of the first word, from 1.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    text: str
    spans: tuple[tuple[int, int], ...]
    metadata: Mapping[str, str] = field(hash=False)
    line: int

    def __post_init__(self) -> None:
        count = len(self.words)
        tree_lengths = {len(self.heads), len(self.relations)}
        if {len(self.tags), len(self.spans)} != {count} or tree_lengths not in ({0}, {count}):
            raise ShapeError(
                f"A sentence of {count} words needs {count} tags and spans, and either {count} heads and "
                "relations or none."
            )


def read_tagged_sentences(file: str | Path, as_named: bool = False) -> tuple[TaggedSentence, ...]:
    """Read the sentences of a CoNLL-U file (.conllu) or a CoNLL file; .gz files are decompressed.

    Args:
        file: path of the file.
        as_named: trust the file extension, even if the contents look like another format.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, exceeds the limits of `sentence_files`, looks like
            another format, or has invalid lines, which are listed.
        EmptyTextError: the file has no sentences.
    """
    with open_file(file) as (stream, name):
        return _read(stream, name, as_named)


def parse_tagged_sentences(content: bytes, name: str, as_named: bool = False) -> tuple[TaggedSentence, ...]:
    """Parse the sentences in a file's bytes; see `read_tagged_sentences`.

    Args:
        content: the content of the file.
        name: the file name; its extension distinguishes CoNLL-U from CoNLL.
        as_named: see `read_tagged_sentences`.

    Raises:
        TextError, EmptyTextError: as in `read_tagged_sentences`.
    """
    return _read(io.BytesIO(content), name, as_named)


def _read(stream: BinaryIO, name: str, as_named: bool) -> tuple[TaggedSentence, ...]:
    with unpack(stream, name) as (unpacked, stem):
        return _sentences(unpacked, name, stem.lower().endswith(".conllu"), as_named)


def _sentences(stream: BinaryIO, name: str, treebank: bool, as_named: bool) -> tuple[TaggedSentence, ...]:
    file_lines = check_format(lines_of(stream, name), name, CONLLU if treebank else CONLL, as_named)
    errors = ValidationErrors(name)
    reader = block_reader(treebank)
    sentences: list[TaggedSentence] = []
    for block in _blocks(file_lines, name):
        sentence = reader.sentence(block, errors)
        if sentence is None:
            continue
        sentences.append(sentence)
        if len(sentences) > MAX_SENTENCES:
            raise TextError(f"{name} has more than {MAX_SENTENCES:,} sentences. Split the file.")
    errors.check()
    if not sentences:
        raise EmptyTextError(f"{name} has no sentences. Write a word and its tag on each line.")
    return tuple(sentences)


def _blocks(file_lines: Iterator[str], name: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the blocks of lines between blank lines, each as a list of (line number, line) pairs."""
    block: list[tuple[int, str]] = []
    count = 0
    for number, line in enumerate(file_lines, 1):
        if line.strip():
            count += 1
            if count > MAX_WORDS:
                raise TextError(f"{name} has more than {MAX_WORDS:,} words. Split the file.")
            block.append((number, line.rstrip("\n")))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _read_comment(line: str, metadata: dict[str, str]) -> None:
    metadata.update((key, value) for key, value in parser.parse_comment_line(line) if value)


class BlockReader(Protocol):
    """A parser for the sentences of one file. The sentences must be parsed in the order of the file."""

    def sentence(self, block: list[tuple[int, str]], errors: ValidationErrors) -> TaggedSentence | None:
        """Parse the lines of a sentence, or return None if they contain no words.

        Args:
            block: the lines as (line number, line) pairs.
            errors: collects the errors in the lines. The sentence is valid only if no error was added.
        """


def block_reader(treebank: bool) -> BlockReader:
    """Return a CoNLL-U reader for a treebank, otherwise a CoNLL reader. Each file needs a new reader."""
    return _ConlluReader() if treebank else _ConllReader()


class _ConllReader:
    """Parses the sentences of a CoNLL file, whose lines must all have the same number of columns."""

    def __init__(self) -> None:
        self._columns: int | None = None

    def sentence(self, block: list[tuple[int, str]], errors: ValidationErrors) -> TaggedSentence | None:
        words: list[str] = []
        tags: list[str] = []
        metadata: dict[str, str] = {}
        first_line = 0
        for line, text in block:
            if not words and _COMMENT.match(text):
                _read_comment(text, metadata)
                continue
            columns = text.split("\t") if "\t" in text else re.split(" +", text.strip(" "))
            columns = [column.strip() for column in columns]
            if columns[0] == "-DOCSTART-":
                continue
            if self._is_valid(line, columns, errors):
                first_line = first_line or line
                words.append(columns[0])
                tags.append(columns[-1])
        if not words:
            return None
        text, spans = _join_words(words, [True] * len(words))
        return TaggedSentence(
            tuple(words), tuple(tags), (), (), text, spans, MappingProxyType(metadata), first_line
        )

    def _is_valid(self, line: int, columns: Sequence[str], errors: ValidationErrors) -> bool:
        if len(columns) < 2 or not columns[-1]:
            errors.add(line, f"“{truncate_text(columns[0])}” has no tag in a column after the word")
            return False
        if error := label_error(columns[-1]):
            errors.add(line, error)
            return False
        if not columns[0]:
            errors.add(line, f"the tag {truncate_text(columns[-1])} has no word in a preceding column")
            return False
        # Compare the column counts: the second half of a word with a space must not be read as the tag.
        self._columns = self._columns or len(columns)
        if len(columns) != self._columns:
            errors.add(line, f"the line has {len(columns)} columns, but previous lines have {self._columns}")
            return False
        return True


@dataclass
class _WordLine:
    """A line of CoNLL-U that contains a word; ``space`` states whether a space follows the word."""

    line: int
    form: str
    tag: str
    head: int | None
    relation: str
    space: bool


@dataclass
class _SentenceLines:
    """The parsed lines of a CoNLL-U sentence.

    Attributes:
        contracted: tokens that contain several words, each with the index of its first word, its number of
            words, its form, and whether a space follows.
    """

    words: list[_WordLine] = field(default_factory=list)
    contracted: list[tuple[int, int, str, bool]] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


class _ConlluReader:
    """Parses the sentences of a CoNLL-U file, and checks their dependency trees."""

    def sentence(self, block: list[tuple[int, str]], errors: ValidationErrors) -> TaggedSentence | None:
        parsed, previous_count = _SentenceLines(), errors.count
        for line, text in block:
            if text.startswith("#"):
                _read_comment(text, parsed.metadata)
            else:
                self._word(line, text, parsed, errors)
            if errors.count > previous_count:  # after an error, all further word numbers are wrong
                return None
        words = parsed.words
        self._check_tree(words, errors)
        if errors.count > previous_count or not words:
            return None
        text, spans = _text_and_spans(parsed)
        has_tree = words[0].head is not None
        return TaggedSentence(
            tuple(word.form for word in words),
            tuple(word.tag for word in words),
            tuple(word.head - 1 for word in words if word.head is not None),
            tuple(word.relation for word in words) if has_tree else (),
            text,
            spans,
            MappingProxyType({key: value for key, value in parsed.metadata.items() if key != "text"}),
            words[0].line,
        )

    def _word(self, line: int, text: str, parsed: _SentenceLines, errors: ValidationErrors) -> None:
        columns = text.split("\t")
        if len(columns) != _COLUMNS:
            errors.add(line, f"the line has {len(columns)} tab-separated columns, but CoNLL-U has {_COLUMNS}")
            return
        number = head = None
        with suppress(ParseException, ValueError):  # int() raises ValueError for too many digits
            head = parser.parse_int_value(columns[6])
            number = parser.parse_id_value(columns[0])
        if number is None:
            location = f"“{truncate_text(columns[0])}” with head “{truncate_text(columns[6])}”"
            errors.add(line, f"{location}, but a word and its head must be numbers")
            return
        form, tag, relation = columns[1], columns[3], columns[7]
        space = "SpaceAfter=No" not in columns[9].split("|")
        if isinstance(number, tuple):
            # Empty nodes such as 8.1 are skipped, because they do not occur in the text.
            if number[1] == "-":
                parsed.contracted.append((number[0] - 1, number[2] - number[0] + 1, form, space))
            return
        if number != len(parsed.words) + 1:
            errors.add(line, f"the line has word {number}, but word {len(parsed.words) + 1} was expected")
            return
        if not form.strip() or not tag.strip():
            errors.add(line, "a word has no form or no tag; write _ for a missing value")
            return
        if error := label_error(tag) or label_error(relation):
            errors.add(line, error)
            return
        parsed.words.append(_WordLine(line, form, tag, head, relation, space))

    def _check_tree(self, words: list[_WordLine], errors: ValidationErrors) -> None:
        if all(word.head is None for word in words):
            return
        previous_count = errors.count
        for number, word in enumerate(words, 1):
            if word.head is None:
                errors.add(word.line, "the word has no head, but other words of the sentence have one")
            elif not 0 <= word.head <= len(words):
                errors.add(word.line, f"the head is {word.head}, but the sentence has {len(words)} words")
            elif word.head == number:
                errors.add(word.line, "a word is its own head")
        if errors.count == previous_count:
            cyclic = _find_cycle([word.head or 0 for word in words])
            if cyclic is not None:
                errors.add(words[cyclic].line, "the heads form a cycle without a root")


def _find_cycle(heads: list[int]) -> int | None:
    """Return the index of a word on a cycle of syntactic heads, or None if there is no cycle.

    Args:
        heads: syntactic head of each word, from 1; 0 for the root.
    """
    is_settled = [False] * len(heads)
    for start in range(len(heads)):
        path: set[int] = set()
        index = start
        while not is_settled[index]:
            if index in path:
                return index
            path.add(index)
            if not heads[index]:
                break
            index = heads[index] - 1
        for visited in path:
            is_settled[visited] = True
    return None


def _text_and_spans(parsed: _SentenceLines) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the text of a CoNLL-U sentence, and the span of each word in the text."""
    words = parsed.words
    contracted = {
        start: (count, form, space)
        for start, count, form, space in parsed.contracted
        if start + count <= len(words)
    }
    tokens: list[tuple[int, str, bool]] = []  # (number of words, form, whether a space follows) of each token
    index = 0
    while index < len(words):
        token = contracted.get(index, (1, words[index].form, words[index].space))
        tokens.append(token)
        index += token[0]
    text = parsed.metadata.get("text", "")
    spans = _find_spans(text, [form for _, form, _ in tokens])
    if spans is None:
        text, spans = _join_words([form for _, form, _ in tokens], [space for _, _, space in tokens])
    word_spans: list[tuple[int, int]] = []
    for (count, form, _), (start, end) in zip(tokens, spans, strict=True):
        forms = [word.form for word in words[len(word_spans) : len(word_spans) + count]]
        if "".join(forms) == form:  # for example, "cannot" is "can" + "not"
            for word_form in forms:
                word_spans.append((start, start + len(word_form)))
                start += len(word_form)
        else:  # for example, "del" is "de" + "el"
            word_spans += [(start, end)] * count
    return text, tuple(word_spans)


def _find_spans(text: str, forms: Sequence[str]) -> tuple[tuple[int, int], ...] | None:
    """Return the span of each form in a text; None unless the text consists of the forms and spaces."""
    spans, position = [], 0
    for form in forms:
        while position < len(text) and text[position].isspace():
            position += 1
        if not text.startswith(form, position):
            return None
        spans.append((position, position + len(form)))
        position += len(form)
    return None if text[position:].strip() else tuple(spans)


def _join_words(forms: Sequence[str], spaces: Sequence[bool]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Join word forms into a text; ``spaces`` states whether a space follows each form.

    Returns:
        The text, and the span of each form in the text.
    """
    text, spans = "", []
    for form, space in zip(forms, spaces, strict=True):
        spans.append((len(text), len(text) + len(form)))
        text += form + " " * space
    return text.rstrip(" "), tuple(spans)


NO_UNIT = -1
"""Unit index of a word without tokens: the tokenizer ignored the word, or truncation removed it."""


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """The alignment of the words of a tagged sentence with the tokens of the model's input.

    Attributes:
        lens: the lens that groups tokens into the words of the file. A token outside of words is its own
            unit.
        units: index of each word's unit in the lens, or `NO_UNIT`. Words that share all their tokens, such as
            those of a contracted token, share a unit.
    """

    lens: WordLens
    units: Array

    def __post_init__(self) -> None:
        read_only(self.units)


def align_words(sentence: TaggedSentence, encoding: Encoding) -> AlignedWords:
    """Align the words of a sentence with its tokens.

    A token belongs to the word that contains most of its characters, or to the first of several such words.
    """
    word_of_character = np.full(len(sentence.text), NO_UNIT)
    for word in reversed(range(len(sentence.words))):
        start, end = sentence.spans[word]
        word_of_character[start:end] = word
    owners = [_owner(token, word_of_character) for token in encoding.tokens]
    units: list[Unit] = []
    unit_of_word = np.full(len(sentence.words), NO_UNIT)
    # Tokens of the same word form a group. Each token outside of words forms its own group.
    for (owner, _), run in groupby(
        zip(encoding.tokens, owners, strict=True),
        key=lambda entry: (entry[1], entry[0].position if entry[1] == NO_UNIT else 0),
    ):
        tokens = [token for token, _ in run]
        if owner != NO_UNIT and unit_of_word[owner] == NO_UNIT:
            unit_of_word[owner] = len(units)
        text = tokens[0].display if owner == NO_UNIT else sentence.words[owner]
        positions = tuple(token.position for token in tokens)
        units.append(Unit(text, positions, tokens[0].segment, tokens[0].special))
    for word in np.flatnonzero(unit_of_word == NO_UNIT).tolist():
        sharing_word = _find_sharing_word(sentence.spans[word], encoding.tokens, owners)
        if sharing_word is not None:
            unit_of_word[word] = unit_of_word[sharing_word]
    return AlignedWords(WordLens(tuple(units)), unit_of_word)


def _owner(token: Token, word_of_character: Array) -> int:
    if token.special:
        return NO_UNIT
    words = word_of_character[token.start : token.end]
    words = words[words != NO_UNIT]
    return int(np.bincount(words).argmax()) if len(words) else NO_UNIT


def _find_sharing_word(span: tuple[int, int], tokens: Sequence[Token], owners: Sequence[int]) -> int | None:
    """Return the word of the first token that overlaps a span; None if no token of a word overlaps it."""
    for token, owner in zip(tokens, owners, strict=True):
        if owner == NO_UNIT or token.start is None or token.end is None:
            continue
        if token.start < span[1] and span[0] < token.end:
            return owner
    return None
