"""What a folder with a taught model says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def card(
    provenance: Mapping[str, Any], labels: Sequence[str], history: pd.DataFrame, notes: Sequence[str]
) -> str:
    """A model card in Markdown. What comes from files and names stands in it as JSON, as text alone."""
    facts = provenance["facts"]
    front = {
        "library_name": "transformers",
        "pipeline_tag": facts["task"],
        "base_model": provenance["model"],
        "tags": ["bert-probe"],
    }
    data = {name: value for name, value in provenance.items() if name in _DATA}
    model = {name: value for name, value in provenance.items() if name in _MODEL}
    kept = history[history["kept"]].drop(columns="kept").to_dict("records")
    parts = [
        "---",
        *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in front.items()),
        "---",
        "",
        f"# A model for {facts['task']}",
        "",
        "Taught with BERT Probe. It opens in transformers and in BERT Probe:",
        "",
        "```python",
        "import transformers",
        "",
        f"transformers.pipeline({facts['task']!r}, FOLDER)",
        "```",
        "",
        *_section("Scores on held-out texts", kept[0] | {"measure": facts["measure"]}),
        *_section("Settings", provenance["question"]),
        *_section("Data", data),
        *_section("Taught from", model),
        *_section("What was updated", {name: facts[name] for name in ("updated_parameters", "parameters")}),
        *_section("Labels", list(labels)),
        *(_section("Notes", list(notes)) if notes else ()),
        "## All evaluations",
        "",
        "```csv",
        history.to_csv(index=False).rstrip("\n"),
        "```",
        "",
    ]
    return "\n".join(parts)


_DATA = ("sentences", "sentences_sha256", "held_out", "held_out_sha256", "tokens_dropped")
_MODEL = ("model", "origin", "revision", "architecture", "weights_sha256", "dtype", "device", "libraries")


def _section(title: str, what: Any) -> list[str]:
    written = json.dumps(what, ensure_ascii=False, indent=1, default=str).replace("`", "\\u0060")
    return [f"## {title}", "", "```json", written, "```", ""]
