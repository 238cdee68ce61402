"""Constants that Python and the browser share, and the files of the components that `js/build.js` builds.

A component consists of an ES module and a style sheet.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

CONSTANTS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("constants.json").read_text(encoding="utf-8")
)
"""Constants that Python and the browser read from `constants.json`."""

PARAMETERS: Final = (
    *("layer", "head", "heads", "drawn", "words", "residual", "layout", "direction", "specials", "hide"),
    *("fit", "lines", "renormalize", "root", "pins"),
)
"""Names of the URL parameters that describe a `selection.Selection`."""

COMPONENTS: Final = {
    "matrix": "matrix",
    "head_view": "head-view",
    "model_view": "matrix model-view",
    "layer_map": "layer-map",
    "strip": "strip",
    "toolbar": "toolbar",
}
"""Browser component → CSS classes of its element. Each has a script and a style sheet of the same name."""

FIGURES: Final = ("matrix", "head_view", "model_view", "layer_map")
"""Components that are figures: they can be saved as a page, SVG or PNG file, and added to a report."""

_FOLDER: Final = Path(__file__).with_name("built")


@cache
def script(name: str) -> str:
    """Return a component's ES module, whose default export mounts it."""
    return (_FOLDER / f"{name}.js").read_text(encoding="utf-8")


@cache
def style(name: str) -> str:
    """Return a component's style sheet."""
    return (_FOLDER / f"{name}.css").read_text(encoding="utf-8")


def file_name(name: str) -> str:
    """Return the file name of a component's module, with a hash of its content."""
    return f"{name}-{hashlib.sha256(script(name).encode()).hexdigest()[:16]}.js"
