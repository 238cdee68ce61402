"""Constants that Python and the browser share, read from `constants.json` by both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

CONSTANTS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("constants.json").read_text(encoding="utf-8")
)


PARAMETERS: Final = (
    *("layer", "head", "heads", "drawn", "words", "residual", "layout", "direction", "specials", "hide"),
    *("fit", "lines", "renormalize", "root", "pins"),
)
"""Names of the URL parameters that describe a `selection.Selection`."""
