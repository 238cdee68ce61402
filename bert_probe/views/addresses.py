"""URL parameters of attention views; a module of its own because the server must not import `view`."""

from typing import Final

PARAMETERS: Final = (
    *("layer", "head", "heads", "drawn", "words", "residual", "layout", "direction", "specials", "hide"),
    *("fit", "lines", "renormalise", "root", "pins"),
)
"""URL parameters of a `view.View`."""
