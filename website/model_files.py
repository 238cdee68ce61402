"""The files that the playground downloads: the model, the runtime, the tokenizer, and reference scores.

Every file is compressed with gzip. Its name contains a prefix of its digest, so that browsers can cache it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_probe.analyses.retrieval.calibration import SimilarityCalibration
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.datasets import everyday_topics
from website.onnx_model import WEIGHTS_FILE, OnnxModel
from website.tokenizer import tokenizer_data

PART_BYTES: Final = 12_000_000
"""Size of a part of the weights before compression. Some static hosts accept at most 25 MB per file."""

MAX_TOKENS: Final = 256
"""Maximum number of tokens of a text, as in the checkpoint's settings for sentence vectors."""


def write_model(folder: Path, model: OnnxModel, checkpoint: Checkpoint, runtime: Path) -> dict[str, Any]:
    """Write all files and `manifest.json`; return the manifest.

    Args:
        folder: an existing folder.
        model: the exported checkpoint.
        runtime: ONNX Runtime as WebAssembly.
    """
    description = checkpoint.description
    # Store all low bytes of the float16 weights before all high bytes. High bytes are similar to each other,
    # so this compresses 15% better than interleaved bytes.
    planes = np.frombuffer(model.weights, np.uint8).reshape(-1, 2).T.tobytes()
    parts = [planes[start : start + PART_BYTES] for start in range(0, len(planes), PART_BYTES)]
    encoded = json.dumps(tokenizer_data(checkpoint), ensure_ascii=False, separators=(",", ":")).encode()
    manifest = {
        "model": description.name,
        "weights_sha256": description.weights_sha256,
        "dtype": "float16 weights, computed in float32",
        "shape": {
            "layers": description.layers,
            "heads": description.heads,
            "size": description.hidden_size // description.heads,
        },
        "maxTokens": MAX_TOKENS,
        "weightsFile": WEIGHTS_FILE,
        "weightsLength": len(model.weights),
        "weightsSha256": hashlib.sha256(model.weights).hexdigest(),
        "files": {
            "runtime": _write(folder, "runtime", runtime.read_bytes()),
            "graph": _write(folder, "graph", model.graph),
            "tokenizer": _write(folder, "tokenizer", encoded),
            "calibration": _write(folder, "calibration", calibration(checkpoint)),
            "weights": [_write(folder, f"weights-{number}", part) for number, part in enumerate(parts, 1)],
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return manifest


def calibration(checkpoint: Checkpoint) -> bytes:
    """Return the sorted scores of random pairs of the reference sentences, as float32."""
    sentences = [row.text for row in everyday_topics().rows]
    return SimilarityCalibration("model").of(checkpoint, sentences).random.astype("<f4").tobytes()


def _write(folder: Path, name: str, content: bytes) -> Mapping[str, Any]:
    compressed = gzip.compress(content, 9, mtime=0)
    digest = hashlib.sha256(compressed).hexdigest()
    # The names do not end with .gz, because some hosts decompress such files automatically.
    path = f"{name}-{digest[:12]}.bin"
    (folder / path).write_bytes(compressed)
    return {"path": path, "bytes": len(compressed), "length": len(content), "sha256": digest}
