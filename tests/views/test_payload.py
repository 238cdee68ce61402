"""Test payloads: round trips, alignment, and embedding in a page."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from bert_probe.views import payload as payload_module
from bert_probe.views.payload import encode_text, pack
from tests.helpers.framed import decode_text
from tests.helpers.payloads import read_payload

TEXTS = st.text(st.characters())
"""Arbitrary texts, including lone surrogates."""


@given(st.dictionaries(TEXTS, TEXTS | st.integers(-(2**53), 2**53) | st.lists(TEXTS) | st.booleans()))
def test_description_round_trips(described: dict[str, Any]) -> None:
    assert read_payload(pack(described, {}))[0] == described


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<u2", "u1"])
def test_array_round_trips(dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for given_array in (array, array.T, array[:, ::2]):
        actual = read_payload(pack({}, {"numbers": given_array}))[1]["numbers"]
        assert actual.dtype == array.dtype
        np.testing.assert_array_equal(actual, given_array)


def test_arrays_are_aligned() -> None:
    arrays: dict[str, np.ndarray] = {
        "bits": np.ones(3, np.uint8),
        "firsts": np.ones(5, np.uint16),
        "values": np.ones(7, np.float32),
        "numbers": np.ones(2),
    }
    data = pack({"odd": "x"}, arrays)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    for name, array in arrays.items():
        assert (end + header[name]["data_offsets"][0]) % array.itemsize == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: [entry["dtype"], entry["shape"], entry["data_offsets"]],
        lambda entry: {**entry, "dtype": {entry["dtype"]: None}},
        lambda entry: {**entry, "other": 1},
    ],
    ids=["list", "data type as object", "another key"],
)
@pytest.mark.parametrize("name", ["numbers", "view"])
def test_header_that_browser_and_python_read_differently_is_refused(name: str, change: Any) -> None:
    """safetensors reads these headers."""
    data = pack({"key": "k"}, {"numbers": np.ones((2, 3), np.float32)})
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header[name] = change(header[name])
    encoded = json.dumps(header).encode()
    changed = len(encoded).to_bytes(8, "little") + encoded + data[end:]
    assert load(changed)["numbers"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert payload_module.unpack(data)[0] == {"key": "k"}
    with pytest.raises(ValueError, match="canonical form"):
        payload_module.unpack(changed)


def test_payload_is_deterministic() -> None:
    arrays = {name: np.ones(3, np.float32) for name in ("a", "b", "c", "d")}
    assert len({pack({"key": "k"}, arrays) for _ in range(20)}) == 1


@given(st.binary(max_size=600))
def test_embedded_payload_is_lossless_and_needs_no_escaping(payload: bytes) -> None:
    encoded = encode_text(payload)
    assert decode_text(*encoded) == payload
    assert not set(encoded.text) & set("&<>\"'\\")


def test_text_of_a_large_payload_equals_that_of_a_single_encoding() -> None:
    payload = np.random.default_rng(0).bytes(700_001)
    encoded = encode_text(payload)
    assert payload_module.decode_text(encoded) == decode_text(*encoded) == payload
    compressed = base64.b85decode(encoded.text.translate(str.maketrans(",./", "&<>")))
    assert len(compressed) > 2 * 4 * payload_module._GROUPS
    assert zlib.decompress(compressed, wbits=-zlib.MAX_WBITS) == payload


def test_payload_equals_that_of_the_javascript_test() -> None:
    assert encode_text(b"plain") == (1, 7, "E67RA%mV-b")
    planes, length, text = encode_text(np.arange(64, dtype="<f4").tobytes())
    assert (planes, length, text[:9]) == (4, 81, "V_+Cy(7@o")
