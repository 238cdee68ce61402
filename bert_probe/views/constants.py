"""Constants that Python and the browser share, read from `constants.json` by both."""

import json
from pathlib import Path
from typing import Any, Final

CONSTANTS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("constants.json").read_text(encoding="utf-8")
)
