"""Validation of JSON documents with jsonschema."""

from __future__ import annotations

from typing import Any


def validator(schema: Any) -> Any:
    """Return a validator for a JSON Schema, which is checked first.

    jsonschema is imported here, because its import compiles grammars for seconds if JupyterLab is installed.
    """
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
