"""Collects all errors in a file, so that the user can fix them at once."""

from __future__ import annotations

from bert_probe.errors import InvalidFileError

MAX_LISTED = 10
"""Number of errors listed in the message; further errors are only counted."""


class ValidationErrors:
    """Collects errors in the lines of a file.

    Attributes:
        name: file name, for messages.
        found: line number and error; the first `MAX_LISTED`.
        count: total number of errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[tuple[int, str]] = []
        self.count = 0

    def add(self, line: int, message: str) -> None:
        """Add an error in a line, counted from 1."""
        self.count += 1
        if len(self.found) < MAX_LISTED:
            self.found.append((line, message))

    def check(self) -> None:
        """Raise an error if any were added.

        Raises:
            InvalidFileError: lists the first `MAX_LISTED` errors by line, and counts the others.
        """
        if not self.count:
            return
        listed = "; ".join(f"line {line:,}: {error.rstrip('.')}" for line, error in self.found)
        more = f"; and {self.count - len(self.found):,} more" if self.count > len(self.found) else ""
        number = "an error" if self.count == 1 else f"{self.count:,} errors"
        message = f"{self.name} has {number}: {listed}{more}. Correct the file and open it again."
        raise InvalidFileError(message, self.found, self.count)
