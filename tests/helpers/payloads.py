"""Reads payloads with the safetensors library."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import load

from bert_probe.views.payload import DESCRIPTION


def read_payload(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and the arrays of a payload."""
    end = 8 + int.from_bytes(data[:8], "little")
    assert end % 8 == 0, "data start at a multiple of the item size"
    arrays = load(data)
    return json.loads(arrays.pop(DESCRIPTION).tobytes()), arrays
