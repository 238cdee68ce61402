"""Find the input files of a corpus, read their records, and describe what a run extracts from them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.retrieval.scorers import search_pooling
from bert_probe.analyses.vectors.pooling import DOCUMENT_PROMPTS, PoolingConfig
from bert_probe.core.field_types import Choice, Flag, Index
from bert_probe.core.field_types_of_lists import ChoiceList, Indices
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.question import Question, param, question
from bert_probe.corpus.formats import (
    COMPRESSED_ENDINGS,
    ENDINGS,
    PARQUET,
    WITHOUT_COLUMNS,
    FileRow,
    describe_error,
    ending_of,
    open_decompressed,
    open_file,
    open_lines,
    open_row_starts,
    open_rows,
    refused_row,
)
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import resolve_index
from bert_probe.text.formats import JSON_LINES, TABLE, check_format, format_of
from bert_probe.text.tagged_sentences import TaggedSentence

_CHUNK = 1 << 20
_COUNTED_PER_UPDATE = 1000
"""Interval, in records, at which progress is reported while records are counted."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class MatchedFile:
    """An input file of a corpus run.

    Attributes:
        name: unique name of the file in the run. It is the path as the user gave it, or the path relative to
            the folder or pattern that matched the file.
        path: path of the file.
    """

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class InputFile(MatchedFile):
    """An input file with the size, digest and timestamps that reveal whether the file has changed.

    Attributes:
        size: size of the file in bytes.
        sha256: SHA-256 of the file as it is stored, without decompression.
        stamp: inode, size and times of the file, which change with its content and are fast to read.
    """

    size: int
    sha256: str
    stamp: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the input files: a sentence, or the reason why it cannot be read.

    Attributes:
        row: number of the record over all files, from 1, including records without a text.
        file: name of the input file.
        line: first line of the row, from 1; in Parquet, which has no lines, the number of the row.
        text: the sentence, stripped, with spaces in place of line breaks; None if it cannot be read.
        tagged: words and tags of the sentence; None if the format has no tags.
        problem: a sentence that explains why the text cannot be read; "" for a valid row.
        header: name and description of a sequence from FASTA; None for other rows.
    """

    row: int
    file: str
    line: int
    text: str | None
    tagged: TaggedSentence | None = None
    problem: str = ""
    header: Mapping[str, str] | None = None


def find_inputs(
    inputs: Sequence[str | Path] | str | Path,
    column: str | None = None,
    as_named: bool = False,
    exclude: Iterable[Path] = (),
) -> tuple[MatchedFile, ...]:
    """Return the files that the inputs name or match, in the given order and without duplicates.

    The files of a folder or pattern are sorted by name. Folders (at any depth) and patterns such as
    ``data/**/*.txt`` match only files with one of the extensions in `ENDINGS`; hidden files and links to
    folders are skipped. A path to a single file may have any extension; a file with an unknown
    extension is read as text with one sentence per line.

    Args:
        inputs: files, folders and patterns.
        column: the text column of tables. By default, the only column, or the column named "sentence" or
            "text".
        as_named: whether to trust the file extensions, even if a file looks like another format.
        exclude: files and folders that the run writes. They are skipped in folders and patterns.

    Raises:
        TextError: a file cannot be opened or read, or looks like another format.
        EmptyTextError: no file matches.
        SelectionError: a table does not have this column, or has several columns and `column` is None; or an
            input is an excluded file.
    """
    sources = [inputs] if isinstance(inputs, (str, Path)) else inputs
    outputs = [Path(os.path.realpath(path)) for path in exclude]
    files = _unique_files(chain.from_iterable(_match_files(source, outputs) for source in sources))
    if not files:
        raise EmptyTextError("There are no inputs. Pass files, folders or patterns.")
    for file in files:
        _check_header(file, column)
        if not as_named and ending_of(file.path) != PARQUET:
            _check_format(file, column)
    if column is not None and all(ending_of(file.path) in ("", *WITHOUT_COLUMNS) for file in files):
        raise SelectionError(
            f"None of the files has columns, so there is no column {column}. Omit the column option."
        )
    return files


def _match_files(source: str | Path, outputs: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (name, path) of each file that one input selects; the input is a file, a folder or a pattern.

    Args:
        source: the input.
        outputs: resolved paths of files and folders that are not inputs.
    """
    path = Path(source)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise TextError(f"{path} cannot be opened: {describe_error(error)}. Check the path.") from None
    if is_folder:
        matches = [(path, file) for file in _walk(path)]
        failure = f"{path} contains no file"
    elif "\0" not in str(path) and not os.path.lexists(path) and _WILDCARDS & set(str(path)):
        matches = _match_pattern(path)
        failure = f"{path} matches no file"
    else:
        with open_file(path):
            pass
        if _is_output(path, outputs):
            raise SelectionError(f"{path} is written by this run. Choose another input, or another output.")
        yield str(source), path
        return
    matches = [(base, file) for base, file in matches if not _is_output(file, outputs)]
    if not matches:
        endings = f"{', '.join(ENDINGS)}, with or without {' or '.join(COMPRESSED_ENDINGS)}"
        raise EmptyTextError(f"{failure} with the extension {endings}. Check the path, or pass the files.")
    yield from sorted((file.relative_to(base).as_posix(), file) for base, file in matches)


def _is_output(file: Path, outputs: Sequence[Path]) -> bool:
    """Return whether a file is one of the outputs or is in one of them."""
    path = Path(os.path.realpath(file))
    return any(path.is_relative_to(output) for output in outputs)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the input files in a folder and its subfolders."""

    def fail(error: OSError) -> None:
        message = f"{error.filename} cannot be opened: {describe_error(error)}. Check the path."
        raise TextError(message) from None

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(parent, name) for name in files if not name.startswith("."))
        yield from filter(ending_of, paths)


def _match_pattern(pattern: Path) -> list[tuple[Path, Path]]:
    """Return the files that a pattern matches, and the files in the folders that the pattern matches.

    Each file is paired with the base folder of the pattern: the path before the first wildcard.
    """
    first = next(index for index, part in enumerate(pattern.parts) if _WILDCARDS & set(part))
    base = Path(*pattern.parts[:first])
    try:
        paths = list(base.glob("/".join(pattern.parts[first:])))
    except (OSError, ValueError) as error:
        raise TextError(f"{pattern} is not a valid pattern: {describe_error(error)}.") from None
    matches = []
    for path in paths:
        if any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        try:
            is_folder = stat.S_ISDIR(path.lstat().st_mode)  # False for a link
        except OSError as error:
            raise TextError(f"{path} cannot be opened: {describe_error(error)}. Check the path.") from None
        if is_folder:
            matches += [(base, file) for file in _walk(path)]
        elif ending_of(path):
            matches.append((base, path))
    return matches


def _unique_files(matches: Iterable[tuple[str, Path]]) -> tuple[MatchedFile, ...]:
    """Remove duplicates from a list of (name, path) pairs, and give each file a unique name."""
    files: dict[str, MatchedFile] = {}
    names: set[str] = set()
    for short_name, path in matches:
        real_path = os.path.realpath(path)
        if real_path not in files:
            candidates = chain((short_name, path.as_posix()), (f"{short_name} ({n})" for n in count(2)))
            # The store contains names in UTF-8, but file names may contain bytes that are not UTF-8.
            names_in_utf8 = (os.fsencode(name).decode(errors="replace") for name in candidates)
            unique_name = next(name for name in names_in_utf8 if name not in names)
            names.add(unique_name)
            files[real_path] = MatchedFile(unique_name, path)
    return tuple(files.values())


def _check_header(file: MatchedFile, column: str | None) -> None:
    """Check that a file has a valid header or, if its extension is unknown, that it can be a text file."""
    if ending_of(file.path):
        with open_rows(file.path, file.name, column):
            return
    if {".json", PARQUET} & {suffix.lower() for suffix in file.path.suffixes[-2:]}:
        raise TextError(
            f"{file.name} has a format that is not supported. Convert the file to {' or '.join(ENDINGS)}."
        )
    try:
        with open_decompressed(file.path) as stream:
            has_nul = b"\0" in stream.read(_CHUNK)
    except (OSError, EOFError) as error:
        raise TextError(f"{file.name} cannot be decompressed: {describe_error(error)}.") from None
    if has_nul:
        raise TextError(
            f"{file.name} is not UTF-8 text, because it contains a NUL character. Convert the file to "
            f"{' or '.join(ENDINGS)}."
        )


def _check_format(file: MatchedFile, column: str | None) -> None:
    """Check that the first lines of a file match the format that its extension indicates."""
    read_as = format_of(f"file{ending_of(file.path)}")
    if read_as in (TABLE, JSON_LINES) and column is not None:  # `_check_header` has checked such a file
        return
    with open_lines(file.path) as lines:
        check_format((f"{line.text or ''}\n" for line in lines), file.name, read_as, as_named=False)


def describe_files(files: Sequence[MatchedFile], progress: Progress = no_progress) -> tuple[InputFile, ...]:
    """Return the files with their sizes and digests.

    Args:
        files: the files that `find_inputs` returned.
        progress: called with the number of bytes read and their total.

    Raises:
        TextError: a file cannot be read, or changes while it is read.
    """
    done, input_files = 0, []
    try:
        total = sum(file.path.stat().st_size for file in files)
        for file in files:
            stamp = _stamp(file)
            size, digest = _digest(file, progress, done, total)
            done += size
            input_files.append(InputFile(file.name, file.path, size, digest, stamp))
    except OSError as error:
        raise TextError(f"{error.filename or 'A file'} cannot be read: {describe_error(error)}.") from None
    check_unchanged(input_files)
    return tuple(input_files)


def check_unchanged(files: Sequence[InputFile]) -> None:
    """Check that files have not changed since `describe_files` read them.

    Raises:
        TextError: the content of a file changed, or the file is gone.
    """
    for file in files:
        try:
            # compare the digest, because a file may have been rewritten with the same content
            is_unchanged = _stamp(file) == file.stamp or _digest(file)[1] == file.sha256
        except OSError:
            is_unchanged = False
        if not is_unchanged:
            raise TextError(
                f"{file.name} changed during the run, so the store would mix two versions of the file. "
                "The shards written so far contain the first version. Build the store again, in another "
                "folder, when the inputs no longer change."
            )


def _digest(
    file: MatchedFile, progress: Progress = no_progress, done: int = 0, total: int = 0
) -> tuple[int, str]:
    """Return the size of a file in bytes, and its SHA-256.

    Args:
        file: the file to hash.
        progress: called with the number of bytes read from this and previous files, and with ``total``.
        done: number of bytes read from previous files.
        total: number of bytes of all files.
    """
    digest, size = hashlib.sha256(), 0
    with open_file(file.path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            progress(done + size, total)
    return size, digest.hexdigest()


def _stamp(file: MatchedFile) -> tuple[int, ...]:
    status = file.path.stat()
    # The inode change time is included, because programs cannot set it, unlike the modification time.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def records(files: Iterable[MatchedFile], column: str | None = None) -> Iterator[Record]:
    """Yield the rows of files one by one, so that memory does not grow with the size of a file.

    Blank lines are not records. A row that cannot be read becomes a record with a `problem`, and so does the
    unreadable rest of a file. The same files always give the same records.

    Args:
        files: the files that `find_inputs` returned.
        column: the text column of tables. By default, the only column, or the column named "sentence" or
            "text".
    """
    number = 0
    for file in files:
        for row in _rows(file, column):
            number += 1
            yield Record(number, file.name, row.line, row.text, row.tagged, row.problem, row.header)


def _rows(file: MatchedFile, column: str | None) -> Iterator[FileRow]:
    try:
        with open_rows(file.path, file.name, column) as rows:
            yield from rows
    except ProbeError as error:  # The file has changed since `find_inputs` checked it.
        yield refused_row(1, str(error))


def count_records(
    files: Iterable[MatchedFile], column: str | None = None, progress: Progress = no_progress
) -> int:
    """Return the number of records that `records` would yield, without parsing most tagged sentences.

    Args:
        files: the files that `find_inputs` returned.
        column: the text column of tables. By default, the only column, or the column named "sentence" or
            "text".
        progress: called at intervals with the number of records counted so far, and 0 because the total is
            unknown.
    """
    number = 0
    for file in files:
        for _ in _row_starts(file, column):
            number += 1
            if number % _COUNTED_PER_UPDATE == 0:
                progress(number, 0)
    return number


def _row_starts(file: MatchedFile, column: str | None) -> Iterator[object]:
    try:
        with open_row_starts(file.path, file.name, column) as starts:
            yield from starts
    except ProbeError as error:  # An unreadable file counts as one record, as in `_rows`.
        yield error


PROFILES, VECTORS, NEIGHBORS, ANSWERS, SENTENCE_VECTORS = OPTIONAL_TABLES = (
    *("profiles", "vectors", "neighbors", "answers", "sentence_vectors"),
)
"""Names of the optional tables of a store. The tables of rows, tokens and refusals are always stored."""

DTYPES = ("float32", "float16")


def sentence_pooling(checkpoint: Checkpoint) -> PoolingConfig:
    """Return the pooling configuration of the sentence vectors of a store, and of the documents of a search.

    The configuration is the pooling that the checkpoint declares, with its prompt for documents, as in
    `encode_document` of sentence-transformers. The default is the mean over all tokens.

    Raises:
        UnavailableError: the vectors are sparse, or the declared pooling is not supported.
        CheckpointError: the declared pooling cannot be read.
    """
    model = checkpoint.sentence_model
    if model is not None and model.is_sparse:
        raise UnavailableError(
            f"{checkpoint.description.name} computes sparse vectors, which a store cannot keep. Leave out "
            f"the table {SENTENCE_VECTORS}, or use a model with dense vectors."
        )
    return search_pooling(checkpoint, None, DOCUMENT_PROMPTS, None)


def sentence_vector_size(checkpoint: Checkpoint) -> int:
    """Return the number of dimensions of the sentence vectors that `sentence_pooling` configures."""
    model = checkpoint.sentence_model
    if model is None:
        return checkpoint.description.hidden_size
    return model.dimensions or model.size


@question("corpus ingest", command="corpus run", is_analysis=False)
class IngestConfig(Question):
    """The configuration of a corpus run: the data to extract from each sentence and to store.

    Attributes:
        layers: layers whose vectors are stored; 0 is the output of the embeddings. If None, all layers.
        keep: optional tables to store. "profiles" contains the measures of every head (see `Heads`),
            "vectors" the hidden states of every token, "neighbors" the token that each token attends to most
            in every head, "answers" the predictions of the model's classification or token classification
            head, and "sentence_vectors" one vector per sentence, see `sentence_pooling`.
        words: whether to merge the tokens of each word before the optional tables are computed.
        dtype: data type of the stored vectors; float16 has 11 significant bits and takes half the space.
        truncate: whether to truncate sentences that are too long instead of rejecting them.
    """

    inputs = OneCheckpoint()

    layers: tuple[int, ...] | None = param(
        Indices(Index("layer", 0)),
        default=(-1,),
        about="Layers whose vectors are stored; 0 is the output of the embeddings.  [default: last]",
    )
    keep: tuple[str, ...] = param(
        ChoiceList(OPTIONAL_TABLES),
        default=(PROFILES, VECTORS),
        about=f"Tables to store: {', '.join(OPTIONAL_TABLES)}.  [default: profiles,vectors]",
    )
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    dtype: str = param(
        Choice(DTYPES), default="float32", option="--vector-dtype", about="Data type of stored vectors."
    )
    truncate: bool = param(Flag(), default=False, about="Truncate sentences that are too long.", option="")

    def of(self, checkpoint: Checkpoint) -> IngestConfig:
        """Return this configuration for one model, with its layers and tables in a fixed order.

        The layers are sorted and counted from 0; negative layers are converted.

        Raises:
            SelectionError: the model does not have one of the layers.
            UnavailableError: `keep` has "answers", but the model has no trained classification head; or
                `keep` has "sentence_vectors", but `sentence_pooling` does not support the model.
            CheckpointError: the pooling that the checkpoint declares cannot be read.
        """
        description = checkpoint.description
        if ANSWERS in self.keep and not {TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION} & {*checkpoint.outputs}:
            tables = ", ".join(table for table in OPTIONAL_TABLES if table != ANSWERS)
            raise UnavailableError(
                f"{description.name} has no trained classification head, but the table {ANSWERS} requires "
                f"one. Choose only {tables}, or use a model with a classification head."
            )
        if SENTENCE_VECTORS in self.keep:
            sentence_pooling(checkpoint)
        layers = range(description.layers + 1) if self.layers is None else self.layers
        resolved = {resolve_index(layer, description.layers + 1, "layer") for layer in layers}
        return replace(
            self,
            layers=tuple(sorted(resolved)),
            keep=tuple(table for table in OPTIONAL_TABLES if table in self.keep),
        )
