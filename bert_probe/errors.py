"""Everything that can go wrong, as one tree.

    ProbeError
    ├── CheckpointError          a model could not be opened
    │   ├── NotFoundError        no such folder or hub id
    │   ├── NetworkError         the hub could not be reached
    │   ├── ArchitectureError    not an encoder whose attention can be read
    │   ├── WeightsError         pickle only, broken, truncated, or not matching the config
    │   └── TokenizerError       no usable tokenizer
    ├── TextError                a text could not be read
    │   ├── EmptyTextError       no tokens in it
    │   └── TooLongError         more tokens than the model accepts
    ├── SelectionError           no such layer, head or token (also an IndexError)
    ├── SubjectError             a question asked of what cannot answer it (also a TypeError)
    ├── UnavailableError         this architecture does not have what was asked for
    ├── ShapeError               arrays that do not fit together
    ├── ExportError              a file that cannot be written
    ├── ReportError              a view file or a report that cannot be read, or made
    ├── StoreError               a store of a corpus that cannot be read, or made
    ├── AddressError             no address of this machine, or a port that is taken
    ├── StalledError             work that does not get on
    └── OutOfMemoryError         the machine has too little memory

Each message is a sentence for people: what was given, the limit, the remedy.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ProbeError(Exception):
    """Base of every error that BERT Probe raises on purpose."""


class CheckpointError(ProbeError):
    """A model could not be opened."""


class NotFoundError(CheckpointError):
    """There is no such folder, hub id or revision."""


class NetworkError(CheckpointError):
    """The model hub could not be reached, or refused."""


class ArchitectureError(CheckpointError):
    """The model is not an encoder whose attention can be read."""


class WeightsError(CheckpointError):
    """The weights are missing, unsafe, broken, or do not fit the config."""


class TokenizerError(CheckpointError):
    """The checkpoint has no tokenizer that gives character positions."""


class TextError(ProbeError):
    """A text cannot be turned into input for the model."""


class EmptyTextError(TextError):
    """The text holds nothing that becomes a token."""


class TooLongError(TextError):
    """The text has more tokens than the model accepts."""


class InvalidFileError(TextError):
    """Lines of a file are at fault.

    Attributes:
        faults: line and what is wrong with it, the first of them.
        count: how many there are.
    """

    def __init__(self, message: str, faults: Sequence[tuple[int, str]] = (), count: int = 0) -> None:
        super().__init__(message)
        self.faults, self.count = tuple(faults), count


class SelectionError(ProbeError, IndexError):
    """No such layer, head or token."""


class SubjectError(ProbeError, TypeError):
    """A question was asked of what cannot answer it."""


class UnavailableError(ProbeError):
    """The architecture does not have, or does not show, what was asked for."""


class ShapeError(ProbeError, ValueError):
    """Arrays whose shapes do not fit together."""


class ExportError(ProbeError):
    """A result cannot be written to this file."""


class ReportError(ProbeError):
    """A view file or a report cannot be read, or made."""


class StoreError(ProbeError):
    """A store of a corpus cannot be read, or made."""


class AddressError(ProbeError):
    """The app cannot be served at this address and port."""


class StalledError(ProbeError):
    """Work that was given up because nothing was heard of it."""


class OutOfMemoryError(ProbeError, MemoryError):
    """The machine has too little memory for this model and text."""


_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|failed to allocate", re.I)


@contextmanager
def memory_errors(message: str) -> Iterator[None]:
    """Turn every way of running out of memory into an OutOfMemoryError with this message.

    Python and NumPy raise a MemoryError; torch a RuntimeError, told apart by its text alone.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        raise OutOfMemoryError(message) from None
