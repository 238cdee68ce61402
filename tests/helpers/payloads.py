"""What a payload holds, as any reader of safetensors finds it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import load

from bert_probe.views.payload import DESCRIPTION


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Description and arrays of a payload."""
    end = 8 + int.from_bytes(data[:8], "little")
    assert end % 8 == 0, "the numbers begin at a multiple of their size"
    arrays = load(data)
    return json.loads(arrays.pop(DESCRIPTION).tobytes()), arrays
