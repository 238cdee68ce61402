"""What is wrong with a file, all of it at once: a reader mends a file once, not a line at a time."""

from __future__ import annotations

from bert_probe.errors import InvalidFileError

MOST = 10
"""Faults that are told one by one; of the others there is a count."""


class ValidationErrors:
    """Gathers what is wrong with the lines of a file.

    Attributes:
        name: of the file, as the reader knows it.
        found: line and what is wrong with it, the first `MOST`.
        count: how many there are.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[tuple[int, str]] = []
        self.count = 0

    def add(self, line: int, what: str) -> None:
        """Note that a line, counted from 1, is wrong."""
        self.count += 1
        if len(self.found) < MOST:
            self.found.append((line, what))

    def check(self) -> None:
        """Go on if there are none.

        Raises:
            InvalidFileError: there are; the first `MOST` with their lines, and how many more.
        """
        if not self.count:
            return
        told = "; ".join(f"line {line:,}: {what.rstrip('.')}" for line, what in self.found)
        more = f"; and {self.count - len(self.found):,} more" if self.count > len(self.found) else ""
        trouble = "a fault" if self.count == 1 else f"{self.count:,} faults"
        said = f"{self.name} has {trouble}: {told}{more}. Mend the file and give it again."
        raise InvalidFileError(said, self.found, self.count)
