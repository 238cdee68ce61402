"""A simulated terminal."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """A stream that imitates the standard error of a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> str:
        """Return the visible text of the current line."""
        line = ""
        for frame in self.getvalue().split("\r")[1:]:
            line = frame + line[len(frame) :]
        return line.strip()
