"""Reject tokenizer files that would need too much time or memory, before transformers reads them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_probe.errors import TokenizerError
from bert_probe.model.sources import has_file

MAX_TOKENIZER_BYTES = 100_000_000
"""Size limit of a tokenizer file; a vocabulary of a million tokens needs about 60 million bytes."""
MAX_ADDED_TOKENS = 20_000
"""Maximum number of added tokens of a tokenizer; loading 300,000 added tokens takes 19 seconds."""
MAX_ADDED_CHARACTERS = 1_000_000
"""Maximum total length of the added tokens in a file; some classes need about 225 bytes per character."""
MAX_PIECES = 1_200_000
"""Maximum number of pieces of a Unigram or SentencePiece model, or of vocab.txt; XLM-V has 900,000."""
MAX_PREFIXES, _PREFIXES_PER_PIECE = 2_500_000, 6
"""Maximum number of distinct prefixes of the pieces in UTF-8, or the maximum per piece if that is more.

The tokenizers library stores each prefix in a hash map of about 340 bytes, as do transformers' classes for
tokens that are not split, such as the lines of vocab.txt for ESM. The 250,000 pieces of XLM-RoBERTa or mT5
have at most 2.5 million bytes in total, and fewer prefixes, because vocabularies share most of them.
"""
MAX_PIECE_BYTES = 512
"""Maximum length of a piece of a SentencePiece model in UTF-8; the longest pieces of Gemma have 93 bytes.

For BPE, transformers splits each piece at each position, in a time that grows with its squared length.
"""
MAX_MERGES, _CHARACTERS_PER_PIECE = 2_000_000, 16
"""Maximum number of merges that transformers generates from the pieces of a SentencePiece model, and maximum
average length of the pieces in characters if they have more characters than that in total.

A merge takes about 350 bytes. Gemma has 580,000 merges, and the pieces of XLM-V have 8 characters on average.
"""
MAX_GENERATED_TOKENS = 2_000
"""Maximum number of tokens that a setting adds to the vocabulary; T5 and Pegasus have 100, ByT5 has 125."""
_GENERATING_SETTINGS = ("extra_ids", "offset", "num_madeup_words", "max_depth")
"""Settings from which tokenizer classes of transformers generate tokens, or lists of this length."""
_SPEECH_CLASSES = "Wav2Vec2"
"""Prefix of the tokenizer classes that add the pieces of the vocabulary in quadratic time."""
_DATA_SETTINGS = ("vocab", "merges", "tokenizer_object", "gguf_file", "init_inputs")
"""Settings that replace the vocabulary of the tokenizer files by their value, or by a file anywhere."""
_FILE_SETTINGS = ("vocab_file", "merges_file")
"""Settings that some tokenizer classes use if the folder has no such file."""
_SENTENCEPIECE_PATTERNS = ("*.model", "tokenizer.model*", "*.spm")
OTHER_TOKENIZER_FILES = (*_SENTENCEPIECE_PATTERNS, "*.codes", "*.tokenizer")
"""Glob patterns of the vocabulary files that are neither JSON nor text files."""
TOKENIZER_FILES = (
    *("tokenizer.json", "*tokenizer.*.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "*vocab*.json", "*vocab*.txt", "merges.txt", "dict.txt", "byte_maps.json"),
    *("emoji.json", "normalizer.json", "word_pronunciation.json", "word_shape.json", "*.jinja"),
    *OTHER_TOKENIZER_FILES,
)
"""Glob patterns of the files of a checkpoint that belong to its tokenizer."""
_PATTERNS = ("*.json", "*.txt", *OTHER_TOKENIZER_FILES, "*.jinja", "additional_chat_templates/*.jinja")
"""Glob patterns of the files that transformers' tokenizers read."""
_CHARSMAP_KEY = "precompiled_charsmap"
_MAIN_FILE, _SETTINGS_FILE, _VOCABULARY_FILE = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
_BYTES_FILE = "byte_maps.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"
"""The file whose entries transformers adds to the settings."""
_ADDED_TOKENS_FILES = (_SETTINGS_FILE, _SPECIAL_TOKENS_FILE, "added_tokens.json")
"""Files next to tokenizer.json that add tokens to the vocabulary of a tokenizer."""


def check_tokenizer_files(folder: Path) -> None:
    """Raise an error if a tokenizer file is too large, or its contents need too much time or memory.

    Raises:
        TokenizerError: a file exceeds `MAX_TOKENIZER_BYTES`, `MAX_ADDED_TOKENS`, `MAX_PIECES` or
            `MAX_PREFIXES`, cannot be read, or has a broken normalizer, for which the tokenizers library could
            allocate 8 GB; a piece or a setting exceeds `MAX_PIECE_BYTES`, `MAX_MERGES` or
            `MAX_GENERATED_TOKENS`; or the settings contain a vocabulary, or name a tokenizer file outside the
            folder.
    """
    settings = _read_settings(folder / _SETTINGS_FILE)
    _check_class("config.json", _read_settings(folder / "config.json"))
    _check_class(_SETTINGS_FILE, settings)
    _check_settings(folder / _SETTINGS_FILE, settings)
    _check_settings(folder / _SPECIAL_TOKENS_FILE, _read_settings(folder / _SPECIAL_TOKENS_FILE))
    versions = _versions(settings)
    for file in sorted({*_glob(folder, _PATTERNS), *map(folder.joinpath, versions)}):
        if has_file(file.parent, file.name) and file.stat().st_size > MAX_TOKENIZER_BYTES:
            raise TokenizerError(
                f"{file.name} has {file.stat().st_size:,} bytes, but at most {MAX_TOKENIZER_BYTES:,} are "
                "allowed. Use a smaller tokenizer."
            )
    main_files = (_MAIN_FILE, *versions)
    for name in (*main_files, *_ADDED_TOKENS_FILES):
        content = _read(folder / name)
        _check(name, _scan_json(name, content, name in main_files))
    content = _read(folder / _VOCABULARY_FILE)
    if len(content) > MAX_PREFIXES:
        _check(_VOCABULARY_FILE, _Contents(pieces=content.splitlines()))
    content = _read(folder / _BYTES_FILE)
    if content.count(b" ") + content.count(b"\\u") > MAX_PREFIXES:  # MyT5 stores a dictionary for each byte
        raise TokenizerError(
            f"{_BYTES_FILE} maps more than {MAX_PREFIXES:,} bytes, and would need gigabytes of memory. Use a "
            "smaller tokenizer."
        )
    for file in sorted(_glob(folder, _SENTENCEPIECE_PATTERNS)):
        contents = _scan_sentencepiece(_read(file))
        _check(file.name, contents)
        _check_merges(file.name, contents.pieces)


def _glob(folder: Path, patterns: Iterable[str]) -> set[Path]:
    return {file for pattern in patterns for file in folder.glob(pattern)}


def _read(file: Path) -> bytes:
    """Return the content of a file; nothing if it does not exist."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError as error:
        raise TokenizerError(
            f"{file.name} cannot be read: {error.strerror}. Check its permissions."
        ) from None


def _read_settings(file: Path) -> dict[str, Any]:
    """Return the settings in a JSON file; nothing if the file is too large or not a JSON object."""
    if has_file(file.parent, file.name) and file.stat().st_size > MAX_TOKENIZER_BYTES:
        return {}
    try:
        settings = json.loads(_read(file))
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _check_class(file_name: str, settings: dict[str, Any]) -> None:
    name = str(settings.get("tokenizer_class"))
    if name.startswith(_SPEECH_CLASSES):
        raise TokenizerError(
            f"{file_name} names the tokenizer class {name[:100]}, which belongs to speech models. Use the "
            "checkpoint of a text model."
        )


def _check_settings(file: Path, settings: dict[str, Any]) -> None:
    """Raise an error for settings with which a tokenizer class could fill the memory or read other files.

    transformers passes each setting to the class as an argument.
    """
    for key, value in settings.items():
        if key in _GENERATING_SETTINGS and isinstance(value, int) and value > MAX_GENERATED_TOKENS:
            raise TokenizerError(
                f"{key} in {file.name} is {value:,}, but at most {MAX_GENERATED_TOKENS:,} are allowed. "
                f"Correct or remove {key}, and save the file."
            )
        if value and _replaces_files(key, value, file.parent):
            raise TokenizerError(
                f"{file.name} must not contain {key}, because the vocabulary and the normalizer belong in "
                f"other files of the folder. Remove {key}, and save the file."
            )


def _replaces_files(key: str, value: Any, folder: Path) -> bool:
    """Return whether a setting contains a vocabulary or a normalizer, or names one outside the folder."""
    if key in _FILE_SETTINGS and isinstance(value, str) and not has_file(folder, _MAIN_FILE):
        return os.path.isfile(value) and Path(value).resolve().parent != folder.resolve()  # noqa: PTH113
    if key == "sp_model_kwargs" and isinstance(value, dict):
        return not {"model_file", "model_proto"}.isdisjoint(value)
    return key in _DATA_SETTINGS or _CHARSMAP_KEY in key


def _versions(settings: dict[str, Any]) -> list[str]:
    """Return the files that transformers may read instead of tokenizer.json, depending on its version."""
    names = settings.get("fast_tokenizer_files")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_plain(name) for name in names):
        raise TokenizerError(
            f"fast_tokenizer_files in {_SETTINGS_FILE} must be a list of names of files in the same folder. "
            "Correct or remove fast_tokenizer_files, and save the file."
        )
    return names


def _is_plain(name: str) -> bool:
    return name.isprintable() and not set(name) & set("/\\:") and len(name) <= 100


@dataclass
class _Contents:
    """Contents of a tokenizer file that determine the time and memory for opening it."""

    added_tokens: int = 0
    added_characters: int = 0
    charsmaps: list[bytes | str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    has_unknown_fields: bool = False  # of a piece


def _check(name: str, contents: _Contents) -> None:
    if contents.added_tokens > MAX_ADDED_TOKENS:
        raise TokenizerError(
            f"{name} adds more than {MAX_ADDED_TOKENS:,} tokens to the vocabulary. Save the "
            "tokenizer with these tokens in the vocabulary of its model."
        )
    if contents.added_characters > MAX_ADDED_CHARACTERS:
        raise TokenizerError(
            f"The tokens that {name} adds to the vocabulary have {contents.added_characters:,} characters, "
            f"but at most {MAX_ADDED_CHARACTERS:,} are allowed. Use shorter tokens."
        )
    if any(map(_is_broken_charsmap, contents.charsmaps)):
        raise TokenizerError(
            f"{name} has a normalizer with a broken {_CHARSMAP_KEY}. Save the tokenizer again."
        )
    if contents.has_unknown_fields:  # libraries differ in how they read them, so that they could hide a text
        raise TokenizerError(
            f"A piece of {name} has fields that SentencePiece does not write. Download or save the tokenizer "
            "again."
        )
    limit = max(MAX_PREFIXES, _PREFIXES_PER_PIECE * len(contents.pieces))
    if len(contents.pieces) > MAX_PIECES or _count_prefixes(contents.pieces, limit) > limit:
        raise TokenizerError(
            f"The pieces of {name} are too many or too long, and would need gigabytes of memory: at most "
            f"{MAX_PIECES:,} pieces with {limit:,} different prefixes are allowed. Use a smaller tokenizer."
        )


def _check_merges(name: str, pieces: list[bytes]) -> None:
    """Raise an error if transformers could not generate the merges of a SentencePiece model in seconds."""
    longest = max(map(len, pieces), default=0)
    if longest > MAX_PIECE_BYTES:
        raise TokenizerError(
            f"{name} has a piece of {longest:,} bytes, but at most {MAX_PIECE_BYTES} are allowed. Use a "
            "tokenizer with shorter pieces."
        )
    texts = {piece.decode("utf-8", "replace") for piece in pieces}
    characters = sum(map(len, texts))
    if characters <= MAX_MERGES:  # at most one merge per character
        return
    if characters > max(MAX_MERGES, _CHARACTERS_PER_PIECE * len(texts)) or _count_merges(texts) > MAX_MERGES:
        raise TokenizerError(
            f"The pieces of {name} are too many or too long, and could need gigabytes of memory: at most "
            f"{MAX_MERGES:,} merges and {_CHARACTERS_PER_PIECE} characters per piece are allowed. Use a "
            "smaller tokenizer."
        )


def _count_merges(pieces: set[str]) -> int:
    """Return the number of ways in which the pieces can be split into two other pieces."""
    return sum(
        piece[:index] in pieces and piece[index:] in pieces
        for piece in pieces
        for index in range(1, len(piece))
    )


def _count_prefixes(pieces: list[bytes], limit: int) -> int:
    """Return the number of distinct prefixes of all pieces, or an upper bound that is within the limit."""
    count = sum(map(len, pieces))
    if count <= limit:
        return count
    pieces = sorted(pieces)
    shared = map(os.path.commonprefix, pairwise(pieces))
    return count - sum(map(len, shared))


def _is_broken_charsmap(charsmap: bytes | str) -> bool:
    """Return whether a charsmap, possibly in Base64, states that its trie is larger than the charsmap."""
    try:
        content = base64.b64decode(charsmap) if isinstance(charsmap, str) else charsmap
    except ValueError:
        return True
    return bool(content) and int.from_bytes(content[:4], "little") > len(content) - 4


def _scan_json(name: str, content: bytes, is_main: bool) -> _Contents:
    """Return the contents of a JSON file; for files below the limits, some may be omitted."""
    contents = _Contents()
    # Counting bytes is faster than parsing the vocabulary. Each added token of tokenizer.json is an object;
    # in the other files, it is an element of a list or of an object. Any letter can be written as an escape.
    has_tokens = content.count(b"{" if is_main else b",") >= MAX_ADDED_TOKENS
    has_tokens = has_tokens or len(content) > (MAX_PREFIXES if is_main else MAX_ADDED_CHARACTERS)
    if not has_tokens and b"charsmap" not in content and b"\\u" not in content:
        return contents
    token_counts = [0]

    def visit(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Visit each of the values of a repeated key, because libraries differ in which of them they read.
        for key, value in pairs:
            if key == "content" and isinstance(value, str):
                contents.added_characters += len(value)
            if key == _CHARSMAP_KEY and isinstance(value, str):
                contents.charsmaps.append(value)
            if key == "vocab" and isinstance(value, list):  # only Unigram has a list
                contents.pieces += [
                    item[0].encode("utf-8", "surrogatepass")
                    for item in value
                    if isinstance(item, list) and item and isinstance(item[0], str)
                ]
            if is_main and key == "added_tokens" and isinstance(value, (dict, list)):
                token_counts.append(len(value))
        return dict(pairs)

    try:
        settings = json.loads(content, object_pairs_hook=visit)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(
            f"The tokenizer cannot be loaded, because {name} is not valid JSON: {error}. Save the tokenizer "
            "again with save_pretrained."
        ) from None
    if name == "added_tokens.json" and isinstance(settings, dict):
        token_counts.append(len(settings))
        contents.added_characters = sum(map(len, settings))
    elif not is_main and isinstance(settings, dict):
        groups = [[*value] for value in settings.values() if isinstance(value, list)]
        groups += [[*value.values()] for value in settings.values() if isinstance(value, dict)]
        token_counts.append(sum(map(len, groups)))
        groups.append([value for key, value in settings.items() if key.endswith("_token")])
        contents.added_characters += sum(
            len(token) for group in groups for token in group if isinstance(token, str)
        )
    contents.added_tokens = max(token_counts)
    return contents


_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
"""Wire types of Protocol Buffers: https://protobuf.dev/programming-guides/encoding."""
_PIECES, _NORMALIZERS = 1, (3, 5)
"""Fields of a SentencePiece model: pieces, normalizer_spec and denormalizer_spec."""
_CHARSMAP, _PIECE_TEXT, _PIECE_TYPE = 2, 1, 3
"""Fields of a normalizer and of a piece."""
_PIECE_WIRE_TYPES = {_PIECE_TEXT: _BYTES, 2: _FIXED32, _PIECE_TYPE: _VARINT}
"""Wire types of the fields of a piece: text, score and type."""
_ADDED_TYPES, _PIECE_TYPES = (3, 4), range(7)
"""Types of pieces that transformers adds to the vocabulary (control and user-defined), and all types."""


def _scan_sentencepiece(content: bytes) -> _Contents:
    """Return the contents of a SentencePiece model; nothing if it is not valid, as for a tiktoken file."""
    contents = _Contents()
    try:
        for number, _, value in _fields(content):
            if number == _PIECES and isinstance(value, bytes):
                text, piece_type = _piece(value)
                contents.pieces.append(text)
                contents.added_tokens += piece_type in _ADDED_TYPES
                contents.has_unknown_fields |= piece_type is None
                if len(contents.pieces) > MAX_PIECES:
                    break
            elif number in _NORMALIZERS and isinstance(value, bytes):
                contents.charsmaps += [
                    part for key, _, part in _fields(value) if key == _CHARSMAP and isinstance(part, bytes)
                ]
    except ValueError:
        return _Contents()
    return contents


def _piece(message: bytes) -> tuple[bytes, int | None]:
    """Return the text and the type of a piece: 0 for no type, None for unknown or repeated fields."""
    if len(message) > 1:
        end = 2 + message[1]
        # Almost all pieces have a text below 128 bytes, a score of 4 bytes, and no type.
        if message[0] == 10 and end < 130 and len(message) == end + 5 and message[end] == 21:
            return message[2:end], 0
    text, piece_type, numbers = b"", 0, set()
    for number, wire_type, value in _fields(message):
        if number in numbers or _PIECE_WIRE_TYPES.get(number) != wire_type:
            return b"", None
        numbers.add(number)
        if isinstance(value, bytes):
            text = value
        elif number == _PIECE_TYPE:
            piece_type = value
    return text, piece_type if piece_type in _PIECE_TYPES else None


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield number, wire type and value of each field of a Protocol Buffers message, also of those in groups.

    Fixed-size numbers are 0, because no caller reads them.

    Raises:
        ValueError: the message is not valid.
    """
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire_type, value = tag & 7, 0
        if wire_type == _VARINT:
            value, position = _varint(message, position)
        elif wire_type == _BYTES:
            length, start = _varint(message, position)
            position = start + length
            if position <= len(message):
                yield (tag & 0xFFFFFFFF) >> 3, wire_type, message[start:position]
                continue
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        elif wire_type not in (_GROUP_START, _GROUP_END):
            raise ValueError("unknown wire type")
        if position > len(message):
            raise ValueError("truncated field")
        yield (tag & 0xFFFFFFFF) >> 3, wire_type, value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    if position < len(message) and message[position] < 128:  # almost all numbers
        return message[position], position + 1
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise ValueError("truncated number")
