"""A terminal, as a person sees it."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Standard error as a person sees it."""

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> str:
        """What stands on the line now."""
        line = ""
        for drawn in self.getvalue().split("\r")[1:]:
            line = drawn + line[len(drawn) :]
        return line.strip()
