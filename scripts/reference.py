"""Write docs/reference.md from the docstrings of the public names and the fields of the questions.

python scripts/reference.py           # write the file
python scripts/reference.py --check   # fail if it differs
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Any

import bert_probe
from bert_probe.api import schema
from bert_probe.api.registry import RegisteredQuestion, registered_questions
from bert_probe.core.field_types import Choice, FieldType, Flag
from bert_probe.core.inputs import FileInput, Inputs
from bert_probe.core.question import Question, field_type, option_name, url_key
from bert_probe.core.result import Result

FILE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"

_INTRODUCTION = """# Reference

Every public name of `bert_probe`. `make reference` generates this page from the code. Formulas and papers
are in [methods.md](methods.md), file formats in [store.md](store.md) and [report.md](report.md), requests
in [api.md](api.md).

A **question** is a frozen value. Its method `of` takes the inputs named below and returns a result with the
attributes `question`, `inputs` and `provenance` and the methods `table()`, `save(path)` and `show()`.
Layers and heads count from 0 in Python, from 1 on the command line, over HTTP and in tables; negative
numbers count from the end.
"""


def reference() -> str:
    """Return the content of docs/reference.md."""
    values = {name: getattr(bert_probe, name) for name in sorted(bert_probe.__all__)}
    questions = {name: value for name, value in values.items() if _is_question(value)}
    errors = {name: value for name, value in values.items() if _is_class(value, Exception)}
    other_names = {
        name: value for name, value in values.items() if name not in questions and name not in errors
    }
    blocks = [_INTRODUCTION, "## Questions", _index(questions)]
    blocks += [_question(name, question) for name, question in questions.items()]
    blocks += ["## Functions and classes", *(_entry(name, value) for name, value in other_names.items())]
    blocks += ["## Errors", "\n".join(f"- `{name}`: {_summary(error)}" for name, error in errors.items())]
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _is_class(value: Any, base: type) -> bool:
    return inspect.isclass(value) and issubclass(value, base)


def _is_question(value: Any) -> bool:
    return _is_class(value, Question)


def _index(questions: dict[str, type[Question]]) -> str:
    rows = [
        f"| [{name}](#{name.lower()}) | {_cell(_summary(question))} |" for name, question in questions.items()
    ]
    return "\n".join(["| question | |", "| --- | --- |", *rows])


def _question(name: str, question: type[Question]) -> str:
    lines = [
        f"### {name}",
        "",
        _markdown(_description(question)),
        "",
        f"**Inputs**: {_inputs(question.inputs)}",
    ]
    rows = [_field(question, field) for field in fields(question)]
    if rows:
        lines += [
            "",
            "| field | values | default | option | URL | meaning |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += rows
    result = _result_class(question)
    if result is not None:
        table = (inspect.getdoc(result.frame) or "").removeprefix("Return ")
        lines += ["", f"**Table** (`{result.__name__}`): {_cell(_markdown(table))}"]
    lines += ["", *_surfaces(question)]
    return "\n".join(lines)


def _surfaces(question: type[Question]) -> Iterator[str]:
    registered = _registered().get(question.analysis)
    if registered is not None:
        values = schema.example(registered).get("question", {})
        example = question.from_json(values, _ExampleSizes)
        parameters = list(inspect.signature(question.of).parameters.values())[1:]  # type: ignore[attr-defined]
        names = ", ".join(parameter.name for parameter in parameters if parameter.default is parameter.empty)
        yield f"- **Python**: `bert_probe.{example!r}.of({names}).table()`"
    yield f"- **Command**: `bert-probe {question.command} --help`"
    if registered is not None:
        yield f"- **HTTP and agents**: `POST /api/v1/{registered.name}`, tool `{registered.name}`"


class _ExampleSizes:
    """Numbers of layers and heads of a BERT-base model, with which the layers of examples are validated."""

    layers = heads = 12


@cache
def _registered() -> dict[str, RegisteredQuestion]:
    return {registered.question.analysis: registered for registered in registered_questions().values()}


def _inputs(inputs: Inputs) -> str:
    text = _summary(type(inputs)).rstrip(".")
    files = [f"`{name}` ({_file(file)})" for name, file in inputs.files.items()]
    other = "; optionally a second model" if inputs.has_other else ""
    return f"{text[0].lower()}{text[1:]}{': ' + ', '.join(files) if files else ''}{other}."


def _file(file: FileInput) -> str:
    formats = {
        "table": "table of labeled texts",
        "tagged": "CoNLL or CoNLL-U",
        "documents": "documents",
        "judgments": "relevance judgments, TSV",
    }
    text = " or ".join(formats[name] for name in file.formats)
    return text if file.is_required else f"{text}; optional"


def _field(question: type[Question], field: Field[Any]) -> str:
    kind = field_type(field)
    default = "required" if field.default is MISSING else f"`{field.default!r}`"
    option = f"`{option_name(field)}`" if option_name(field) else ""
    meaning = _meaning(question, field.name) or field.metadata["about"]
    cells = [f"`{field.name}`", _values(kind), default, option, f"`{url_key(field)}`", _markdown(meaning)]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _values(kind: FieldType) -> str:
    if isinstance(kind, Choice):
        return ", ".join(f"`{word}`" for word in kind.words)
    if isinstance(kind, Flag):
        return "`True`, `False`"
    return kind.metavar


def _attributes(question: type) -> dict[str, str]:
    """Return the descriptions of fields by name, from the section "Attributes" of a question's docstring."""
    _, _, section = (inspect.getdoc(question) or "").partition("\nAttributes:\n")
    section = section.partition("\n\n")[0]
    entries = re.findall(r"^    ([\w, ]+): (.*(?:\n        .*)*)", section, re.MULTILINE)
    return {name.strip(): " ".join(text.split()) for names, text in entries for name in names.split(",")}


def _meaning(question: type[Question], name: str) -> str:
    """Return the description of a field; if it is "see `Other`.", return the description in that question."""
    meaning = next((text for base in question.__mro__ if (text := _attributes(base).get(name))), "")
    reference = re.fullmatch(r"see `(\w+)`\.", meaning)
    if reference is None:
        return meaning
    bases = {base.__name__: base for base in question.__mro__}
    other = bases.get(reference[1]) or getattr(bert_probe, reference[1], None)
    return (_meaning(other, name) if _is_question(other) else "") or meaning


def _result_class(question: type[Question]) -> type[Result] | None:
    method: Any = inspect.unwrap(getattr(question, "of"))  # noqa: B009 - `of` differs in each question
    value = method.__globals__.get(str(method.__annotations__["return"]))
    return value if _is_class(value, Result) else None


def _entry(name: str, value: Any) -> str:
    if not inspect.isfunction(value):
        return f"### {name}\n\n{_markdown(_description(value))}"
    lines = [f"### {name}", "", "```python", f"bert_probe.{name}({_parameters(value)})", "```", ""]
    return "\n".join([*lines, _markdown(inspect.getdoc(value) or "")])


def _parameters(function: Callable[..., Any]) -> str:
    """Return the parameters of a function as Python source; a default that is a function becomes "..."."""
    texts = []
    for parameter in inspect.signature(function).parameters.values():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        value = "..." if callable(parameter.default) else repr(parameter.default)
        default = "" if parameter.default is parameter.empty else f" = {value}"
        texts.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    return ", ".join(texts)


def _description(value: Any) -> str:
    """Return a docstring without its sections (Args, Returns, …) and examples."""
    return re.split(r"\n\n(?:Attributes|Args|Raises|Returns):\n|\n\n>>>", inspect.getdoc(value) or "")[0]


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _markdown(text: str) -> str:
    """Return a docstring as Markdown, with bold section names and single instead of double backticks."""
    text = re.sub(
        r"^(Args|Returns|Raises|Attributes):$", r"**\1**\n", text.replace("``", "`"), flags=re.MULTILINE
    )
    text = re.sub(r"^    (?=\S)", "- ", text, flags=re.MULTILINE)
    return re.sub(r"^        +(?=\S)", "  ", text, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Write docs/reference.md; with --check, exit with an error if the file differs."""
    text = reference()
    if "--check" not in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        sys.exit(f"{FILE.name} differs from the code. Run {shlex.join(['make', 'reference'])}.")


if __name__ == "__main__":
    main()
