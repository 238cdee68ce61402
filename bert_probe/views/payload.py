"""What travels to a browser: named arrays and a description, in one piece laid out as safetensors is.

Eight bytes for the header's length, the header as JSON, then the arrays, which begin at a multiple of eight:
a browser reads them where they lie. The description is JSON in an array of its own; within the header's
metadata each of its quotation marks would be written twice. `js/core/payload.js` is the other end.
"""

import json
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

DESCRIPTION = "view"
"""Name of the array that holds the description."""


def packed(described: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """One payload; the same for the same arguments, so that nothing is sent that has not changed."""
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    # Half of a pair, which a text from a file may hold, has no UTF-8: it goes as an escape.
    text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    # safetensors writes the bytes as they lie in memory.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save({**whole, DESCRIPTION: np.frombuffer(text.encode(), np.uint8)}))
