"""What Python and the browser must agree on, from the one file that both read."""

import json
from pathlib import Path
from typing import Any, Final

CONSTANTS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("constants.json").read_text(encoding="utf-8")
)
