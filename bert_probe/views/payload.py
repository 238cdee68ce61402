"""Payloads: the binary format in which the browser receives a view.

A payload contains named arrays and a JSON description in the safetensors format: the length of the header in
eight bytes, the header as JSON, and the arrays. The header is padded so that the arrays start at a multiple
of eight bytes; the browser reads aligned arrays without copying. The description is stored as an array of
UTF-8 bytes, because each quotation mark in the header's metadata would be escaped. `js/core/payload.js` reads
payloads.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bert_probe.text import strict_json

DESCRIPTION = "view"
"""Name of the array that contains the JSON description."""

PLANES = 4
"""Size in bytes of most numbers in a payload. The length of a payload is a multiple of this size."""


def pack(described: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return a payload. Equal data gives equal bytes, so that unchanged data is not sent again."""
    # safetensors ignores the strides of an array, so arrays must be contiguous.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    encoded = _to_json(described)
    encoded += b" " * (-(len(encoded) + sum(array.nbytes for array in contiguous.values())) % PLANES)
    return bytes(save({**contiguous, DESCRIPTION: np.frombuffer(encoded, np.uint8)}))


def _to_json(described: Mapping[str, object]) -> bytes:
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
    # Escape lone surrogates, which texts from files may contain, because UTF-8 cannot encode them.
    return re.sub("[\ud800-\udfff]", lambda surrogate: f"\\u{ord(surrogate[0]):04x}", text).encode()


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the description and the arrays of a payload.

    Raises:
        ValueError: The bytes are not a payload in the format that `pack` writes.
    """
    try:
        arrays = load(payload)
        description = arrays.pop(DESCRIPTION)
        encoded = description.tobytes()
        described: dict[str, Any] = json.loads(encoded)
        header = strict_json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    except (SafetensorError, KeyError, RecursionError) as error:
        raise ValueError(f"The payload is invalid: {error}.") from None
    if not isinstance(described, dict):
        raise ValueError("The payload is invalid: the description is not a JSON object.")
    # Accept only the canonical encoding, so that the browser and Python read the same content.
    if encoded.rstrip(b" ") != _to_json(described):
        raise ValueError("The payload is invalid: the description is not in canonical form.")
    expected = {**arrays, DESCRIPTION: description}
    if header.keys() != expected.keys() or not all(
        _is_entry(header[name], array) for name, array in expected.items()
    ):
        raise ValueError("The payload is invalid: the header is not in canonical form.")
    return described, arrays


def _is_entry(entry: object, array: NDArray[Any]) -> bool:
    """Return whether an entry of a header is written as the browser reads it.

    safetensors also reads lists of values, and objects for data types.
    """
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return False
    dtype, shape, ends = entry["dtype"], entry["shape"], entry["data_offsets"]
    return (
        isinstance(dtype, str)
        and shape == list(array.shape)
        and isinstance(ends, list)
        and len(ends) == 2
        and ends[1] - ends[0] == array.nbytes
    )


class EmbeddedPayload(NamedTuple):
    """A losslessly compressed payload within an HTML page. `js/core/page.js` reads it."""

    planes: int  # number of byte planes: the first bytes of all groups, then the second bytes, and so on
    length: int  # size of the compressed content in bytes
    text: str  # the compressed content in base 85: five characters for four bytes


_LETTERS = str.maketrans("&<>", ",./")
"""Translation of base-85 characters that HTML would escape."""
_GROUPS = 1 << 16  # number of groups of five characters that are encoded or decoded at once


def encode_text(payload: bytes) -> EmbeddedPayload:
    """Return a compressed payload. The bytes are grouped into planes if that reduces the size.

    A plane contains the bytes at the same position of all numbers. These bytes are often similar, which
    improves compression.
    """
    candidates = [(_deflate(payload), 1)]
    if len(payload) % PLANES == 0:
        by_plane = np.frombuffer(payload, np.uint8).reshape(-1, PLANES).T.tobytes()
        candidates.append((_deflate(by_plane), PLANES))
    compressed, planes = min(candidates, key=lambda candidate: len(candidate[0]))
    # In parts, because b85encode and b85decode take fifty bytes of memory for each group of characters.
    text = b"".join(
        base64.b85encode(compressed[start : start + 4 * _GROUPS], pad=True)
        for start in range(0, len(compressed), 4 * _GROUPS)
    )
    return EmbeddedPayload(planes, len(compressed), text.decode("ascii").translate(_LETTERS))


def _deflate(content: bytes) -> bytes:
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return deflate.compress(content) + deflate.flush()


MAX_BYTES: Final = 256_000_000
"""Maximum size of a decompressed payload in bytes, because a short text can decompress to a large payload."""


def decode_text(embedded: EmbeddedPayload, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the payload that `encode_text` encoded.

    Text that a browser might decode differently is rejected: characters outside the alphabet, trailing bytes
    and truncated data.

    Args:
        embedded: The compressed payload.
        max_bytes: Maximum size of the payload in bytes.

    Raises:
        ValueError: The text was not written by `encode_text`, or the payload is too large.
    """
    planes, length, letters = embedded
    blocks, remainder = divmod(len(letters), 5)
    if planes not in (1, PLANES) or remainder or not 4 * blocks - 4 < length <= 4 * blocks:
        raise ValueError("The payload is invalid: its format or length does not match the encoding.")
    if any(letter in letters for letter in "&<>"):
        raise ValueError("The payload is invalid: it contains characters that the encoding does not use.")
    code = letters.translate(_BACK)
    compressed = b"".join(
        base64.b85decode(code[start : start + 5 * _GROUPS]) for start in range(0, len(code), 5 * _GROUPS)
    )
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(compressed[:length], max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"The payload is invalid: {error}.") from None
    if len(content) > max_bytes:
        raise ValueError(f"The payload is larger than the maximum of {max_bytes:,} bytes.")
    if not inflate.eof or inflate.unused_data or any(compressed[length:]) or len(content) % planes:
        raise ValueError("The payload is invalid: the compressed data is incomplete or has additional bytes.")
    return np.frombuffer(content, np.uint8).reshape(planes, -1).T.tobytes()


_BACK = str.maketrans(",./", "&<>")
