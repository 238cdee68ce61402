"""The exceptions that BERT Probe raises, all derived from `ProbeError`.

    ProbeError
    ├── CheckpointError          a model could not be loaded
    │   ├── NotFoundError        no such folder or Hub ID
    │   ├── NetworkError         the hub could not be reached
    │   ├── ArchitectureError    not an encoder with readable attention
    │   ├── WeightsError         broken, truncated, or inconsistent with the config
    │   │   └── PickledWeightsError  no safetensors, only a pickle
    │   └── TokenizerError       no usable tokenizer
    ├── TextError                a text or a file of texts could not be read
    │   ├── EmptyTextError       no tokens
    │   ├── TooLongError         more tokens than the model accepts
    │   └── InvalidFileError     invalid lines in a file
    ├── SelectionError           no such layer, head, token or option (also an IndexError)
    ├── SubjectError             inputs that an analysis does not support (also a TypeError)
    ├── UnavailableError         not available for this architecture or checkpoint
    ├── ShapeError               arrays of inconsistent shapes (also a ValueError)
    ├── ExportError              a file could not be written
    ├── TooLargeError            a table is larger than a server allows
    ├── ReportError              a view file or report could not be read or created
    │   └── ReportTooLargeError  the page of a report would be too large
    ├── StoreError               a corpus store could not be read or created
    ├── AddressError             the app cannot be served at this address and port
    ├── StalledError             a job that stopped reporting progress
    └── OutOfMemoryError         not enough memory (also a MemoryError)

Each message states the invalid value, what is allowed, and what to do.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ProbeError(Exception):
    """Base class of all errors that BERT Probe raises."""

    def __str__(self) -> str:
        """Return the message. Lone surrogates, which a message can quote from a file, are escaped."""
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class CheckpointError(ProbeError):
    """Raised when a model cannot be loaded."""


class NotFoundError(CheckpointError):
    """Raised when a folder, Hub ID or revision does not exist."""


class NetworkError(CheckpointError):
    """Raised when the model hub cannot be reached, or denies access."""


class ArchitectureError(CheckpointError):
    """Raised for a model that is not an encoder with readable attention."""


class WeightsError(CheckpointError):
    """Raised when weights are missing, unsafe, broken, or inconsistent with the config."""


class PickledWeightsError(WeightsError):
    """Raised for a checkpoint without safetensors files, which may have pickled weights.

    Attributes:
        model: folder or Hub ID, as passed by the caller.
        converted_revision: the hub revision with converted weights, or None.
    """

    def __init__(self, message: str, model: str = "", converted_revision: str | None = None) -> None:
        super().__init__(message)
        self.model, self.converted_revision = model, converted_revision


class TokenizerError(CheckpointError):
    """Raised for a tokenizer that is missing, broken, unsupported, or does not fit the model or a text."""


class TextError(ProbeError):
    """Raised for a text that cannot be converted to model inputs, or a file of texts that cannot be read."""


class EmptyTextError(TextError):
    """Raised for a text without tokens."""


class TooLongError(TextError):
    """Raised for a text with more tokens than the model accepts."""


class InvalidFileError(TextError):
    """Raised for a file with invalid lines.

    Attributes:
        faults: line numbers and error messages of the first invalid lines.
        count: number of invalid lines.
    """

    def __init__(self, message: str, faults: Sequence[tuple[int, str]] = (), count: int = 0) -> None:
        super().__init__(message)
        self.faults, self.count = tuple(faults), count


class SelectionError(ProbeError, IndexError):
    """Raised for a layer, head, token or option that does not exist."""


class SubjectError(ProbeError, TypeError):
    """Raised when an analysis is called with inputs that it does not support."""


class UnavailableError(ProbeError):
    """Raised when a property or analysis is unavailable for an architecture or checkpoint."""


class ShapeError(ProbeError, ValueError):
    """Raised for arrays of inconsistent shapes."""


class ExportError(ProbeError):
    """Raised when a result cannot be written to a file."""


class TooLargeError(ProbeError):
    """Raised when a table is larger than a server allows."""


class FormatError(ExportError):
    """Raised when a file format cannot represent a table."""


class WrittenElsewhereError(ExportError):
    """Raised when a result cannot be written to its path, but was written to the path in the message."""


class ReportError(ProbeError):
    """Raised when a view file or a report cannot be read or created."""


class ReportTooLargeError(ReportError):
    """Raised when the page of a report would be larger than allowed."""


class StoreError(ProbeError):
    """Raised when a corpus store cannot be read or created."""


class AddressError(ProbeError):
    """Raised when the app cannot be served at an address and port."""


class StalledError(ProbeError):
    """Raised when a job stops reporting progress."""


class OutOfMemoryError(ProbeError, MemoryError):
    """Raised when there is not enough memory for a model and its inputs."""


_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|failed to allocate", re.I)


@contextmanager
def memory_errors(message: str) -> Iterator[None]:
    """Convert out-of-memory errors in the ``with`` block to an OutOfMemoryError with the given message.

    Python and NumPy raise MemoryError. PyTorch raises RuntimeError, which this function recognizes by its
    message.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise OutOfMemoryError(message) from None
