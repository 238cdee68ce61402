"""A simulated terminal."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> str:
        """Return what is visible on the current line."""
        line = ""
        for frame in self.getvalue().split("\r")[1:]:
            line = frame + line[len(frame) :]
        return line.strip()
