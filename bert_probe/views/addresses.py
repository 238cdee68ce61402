"""Names that stand in addresses, for those who need no view."""

from typing import Final

PARAMETERS: Final = (
    *("layer", "head", "heads", "drawn", "words", "residual", "layout", "direction", "specials", "hide"),
    *("fit", "lines", "renormalise", "root", "pins"),
)
"""What a view of attention takes up in an address."""
