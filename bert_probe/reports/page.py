"""Render the data of a report as an HTML page, and escape all strings from users and models."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import ReportError, ReportTooLargeError
from bert_probe.reports import tables
from bert_probe.reports.numbers import ViewTolerances
from bert_probe.reports.tables import ReportTable, digest, too_large
from bert_probe.reports.tolerances import FACTOR
from bert_probe.views import built
from bert_probe.views.page import theme_style
from bert_probe.views.text import describe_calibration

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 60
"""Maximum number of displayed columns of a table; the JSON data of the page contain the complete table."""

_WIDTH: Final = 320
_HEIGHT: Final = 64
"""Width and height of the calibration histogram in CSS pixels."""
_FOLDER: Final = Path(__file__).parent
_ESCAPED: Final = {"&": 4, "<": 3, ">": 3, '"': 5, "'": 5}
"""Number of characters by which escaping lengthens a text, by character."""
_CONTROL_CHARACTERS: Final = "".join(map(chr, range(32)))
"""Characters that take up to six characters in JSON, like "<"."""
_LARGE_NUMBER_CHARACTERS: Final = 18
"""Maximum number of characters before the exponent of a number in JSON, as in 1000000000000000.0."""
_PACKAGE_NAMES: Final = ("bert_probe", "bert-probe")
"""Names of this package among the library versions of a report."""


_remaining: Final[ContextVar[int]] = ContextVar("_remaining")
"""Number of characters of text that may still be rendered."""


def render_page(stated: Mapping[str, Any], max_characters: int) -> str:
    """Render a report as an HTML page.

    Args:
        stated: the report's data, as returned by `report.statement`.
        max_characters: maximum number of characters of the JSON data and of all escaped texts. Styles and
            scripts are not counted; `Report.html` limits the size of the page in bytes.

    Raises:
        ReportTooLargeError: the limit is exceeded. It is checked before any text is escaped, because escaping
            can take six times as many characters.
        ReportError: the data are not valid.
    """
    if _count_characters(stated) > max_characters:
        raise too_large(max_characters)
    views = stated["views"]
    components = sorted({view["picture"].get("component", "") for view in views} - {""})
    # Escape "<", because "</script>" in a string would end the script element.
    data = json.dumps(stated, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    with _limited(max_characters - len(data), too_large(max_characters)):
        fields = {
            "title": _text(stated["title"]),
            "lead": _lead(stated),
            "contents": _contents(views),
            "views": "\n".join(_view(number, view) for number, view in enumerate(views, start=1)),
        }
    fields |= {
        "style": theme_style("system") + (_FOLDER / "report.css").read_text(encoding="utf-8"),
        "styles": "".join(
            f'<template id="style-{component}"><style>{built.style(component)}</style></template>'
            for component in components
        ),
        "script": built.script("report_page"),
        "stated": data,
    }
    template = (_FOLDER / "report.html").read_text(encoding="utf-8")
    # Replace all fields in one pass, so that "<!--style-->" within a user's text is not replaced.
    start, *parts = template.split("<!--")
    fragments = [start]
    for part in parts:
        name, _, following = part.partition("-->")
        fragments += [fields[name], following]
    # Escape lone surrogates, which UTF-8 cannot encode.
    page = "".join(fragments).encode("utf-8", "backslashreplace")
    return f"{page.decode()}<!-- SHA-256 of all above: {digest(page)} -->\n"


def _count_characters(stated: Any) -> int:
    """Estimate the number of characters that the strings and the large numbers of a report take in JSON.

    The keys of objects are not counted. "<" and each control character count as six characters; other escapes
    are ignored. A float with an absolute value of 1000 or more counts as `_LARGE_NUMBER_CHARACTERS`, because
    JSON has all its digits.
    """
    count, containers = 0, [stated]
    while containers:
        container = containers.pop()
        for value in container.values() if isinstance(container, Mapping) else container:
            if isinstance(value, str):
                count += len(value) + 5 * value.count("<")
                if not value.isprintable():
                    count += 5 * sum(map(value.count, _CONTROL_CHARACTERS))
            elif isinstance(value, float):
                count += _LARGE_NUMBER_CHARACTERS * (abs(value) >= 1000)
            elif isinstance(value, Mapping | list | tuple):
                containers.append(value)
    return count


@contextmanager
def _limited(characters: int, error: ReportTooLargeError) -> Iterator[None]:
    """Raise an error if `_text` returns more characters in total within the context."""
    token = _remaining.set(characters)
    try:
        yield
        if _remaining.get() < 0:
            raise error
    finally:
        _remaining.reset(token)


def _text(value: object) -> str:
    """Return a value as HTML text; "" if the texts of the page have more characters than allowed."""
    text = str(value)
    length = len(text) + sum(more * text.count(character) for character, more in _ESCAPED.items())
    remaining = _remaining.get() - length
    _remaining.set(remaining)
    return html.escape(text) if remaining >= 0 else ""


def _lead(stated: Mapping[str, Any]) -> str:
    views, made_with = stated["views"], stated["made_with"]
    models = dict.fromkeys(
        str(view["provenance"].get("model", "")) for view in views if view["provenance"].get("model")
    )
    versions = ", ".join(
        f"{name} {version}" for name, version in made_with.items() if name not in _PACKAGE_NAMES
    )
    count = f"{len(views)} views" if len(views) != 1 else "One view"
    return (
        f"<p>{count} of {_text(', '.join(models))}</p>"
        f"<p class=quiet>Created with BERT Probe {_text(made_with.get('bert_probe', ''))} "
        f"({_text(versions)}). "
        "<code>bert-probe verify</code> recomputes all numbers of this file and lists the differences.</p>"
    )


def _contents(views: Sequence[Mapping[str, Any]]) -> str:
    if len(views) < 2:
        return ""
    items = (
        f'<li><a href="#view-{number}">{_text(view["title"])}</a></li>'
        for number, view in enumerate(views, start=1)
    )
    return f"<nav aria-label=Views><ol>{''.join(items)}</ol></nav>"


def _view(number: int, view: Mapping[str, Any]) -> str:
    table = ReportTable.from_json(view["table"])
    return (
        f'<article id="view-{number}"><h2><span class=number>{number}</span> {_text(view["title"])}</h2>'
        f"{_texts(view['provenance'])}{_note(view['note'], table)}{_calibration(view['provenance'])}"
        f"{_picture(number, view['picture'])}"
        f"{_table(number, table, is_open=not view['picture'].get('component'))}"
        f"{_tolerances(ViewTolerances.from_json(view['tolerances']), table)}"
        f"{_provenance(view['provenance'])}{_code(view['code'])}</article>"
    )


def _texts(provenance: Mapping[str, Any]) -> str:
    texts = provenance.get("texts") or ([provenance] if provenance.get("text") else [])
    parts = [part for text in texts for part in (text.get("text"), text.get("pair")) if part]
    paragraphs = "".join(f"<p>{_text(part)}</p>" for part in parts)
    return f"<blockquote>{paragraphs}</blockquote>" if paragraphs else ""


def _note(note: Mapping[str, str], table: ReportTable) -> str:
    """Render a note as HTML; each referenced number is a data element with row and column in its title."""
    if not note["written"]:
        return ""
    parts = [
        _text(segment.text)
        if segment.row is None or segment.column is None
        else f'<data title="row {segment.row + 1}, {_text(table.columns[segment.column].name)}">'
        f"{_text(segment.text)}</data>"
        for segment in tables.split_note(note["written"], table)
    ]
    return f"<p class=note>{''.join(parts)}</p>"


def _calibration(provenance: Mapping[str, Any]) -> str:
    """Render the calibration of a score: a sentence, and a histogram of random pairs with the score marked.

    Raises:
        ReportError: the calibration in the provenance does not have the format that `calibrate_result`
            writes.
    """
    facts = provenance.get("facts")
    calibration = facts.get("calibration") if isinstance(facts, Mapping) else None
    if calibration is None:
        return ""
    try:
        sentence = describe_calibration(calibration)
        bars = [float(percent) for percent in calibration["histogram"]["percent"]]
        low, high = (float(calibration["histogram"][name]) for name in ("low", "high"))
        score = calibration.get("score")
        mark = None if score is None else _WIDTH * (float(score) - low) / (high - low)
        unit = _HEIGHT / max(bars)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        raise ReportError("The calibration of a view is invalid. Choose another file.") from None
    step = _WIDTH / len(bars)
    rectangles = "".join(
        f'<rect x="{step * index:.2f}" y="{_HEIGHT - unit * bar:.2f}" width="{step:.2f}" '
        f'height="{unit * bar:.2f}"></rect>'
        for index, bar in enumerate(bars)
    )
    line = "" if mark is None else f'<line x1="{mark:.2f}" x2="{mark:.2f}" y1="0" y2="{_HEIGHT}"></line>'
    return (
        f"<figure class=calibration><p>{_text(sentence)}</p>"
        f'<svg viewBox="-2 0 {_WIDTH + 4} {_HEIGHT}" preserveAspectRatio=none role=img '
        f'aria-label="Histogram of random pairs of reference sentences">{rectangles}{line}</svg>'
        f"<div class=ends><span>{_number(low)}</span><span>{_number(high)}</span></div>"
        "<figcaption>Other texts have different percentiles: for example, long documents on one subject are "
        "more similar to one another.</figcaption></figure>"
    )


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _picture(number: int, picture: Mapping[str, Any]) -> str:
    component = picture.get("component")
    if not component:
        return ""
    caption = f"<figcaption>{_text(picture['caveat'])}</figcaption>" if picture.get("caveat") else ""
    name = _text(built.COMPONENTS[component])
    return (
        f'<figure><div class=picture data-view="{number - 1}" data-class="{name}">'
        "<noscript>The figure needs JavaScript; the table contains its values.</noscript>"
        f"</div>{caption}</figure>"
    )


def _table(number: int, table: ReportTable, is_open: bool) -> str:
    columns = table.columns[:MAX_COLUMNS]
    rows = range(min(table.rows, MAX_ROWS))
    head = "".join(f"<th scope=col{_align(column.kind)}>{_text(column.name)}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_align(column.kind)}>{_text(table.cell(row, index))}</td>"
            for index, column in enumerate(columns)
        )
        + "</tr>"
        for row in rows
    )
    size = f"{_count(table.rows, 'row')}, {_count(len(table.columns), 'column')}"
    return (
        f"<details{' open' if is_open else ''}><summary>Table <span class=quiet>{size}</span></summary>"
        f"<div class=bar>{_truncation(table)}<button type=button data-csv={number - 1}>Save as "
        "CSV</button></div>"
        f'<div class=scroll tabindex=0 role=region aria-label="Table of view {number}">'
        f"<table data-view={number - 1}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div></details>"
    )


def _count(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _truncation(table: ReportTable) -> str:
    """Return a sentence that says which rows, columns or digits of a table are only in the CSV file."""
    limits = ((table.rows, MAX_ROWS, "rows"), (len(table.columns), MAX_COLUMNS, "columns"))
    truncated = [f"the first {limit} of {count:,} {name}" for count, limit, name in limits if count > limit]
    if truncated:
        sentence = f"This table shows {' and '.join(truncated)}. The CSV file contains the complete table."
    else:
        sentence = "The CSV file contains all digits of the numbers."
    return f"<span class=quiet>{sentence}</span>"


def _align(kind: str) -> str:
    return " class=n" if kind in ("number", "integer") else ""


def _tolerances(tolerances: ViewTolerances, table: ReportTable) -> str:
    """Render a view's tolerances as an HTML table with an explanation; "" if there are none."""
    entries = [(tolerance.of or "all numbers of the matrix", tolerance) for tolerance in tolerances.table]
    entries += [
        (f"provenance: {tolerance.of}", tolerance) for tolerance in tolerances.provenance if tolerance.largest
    ]
    for number, payload in enumerate(tolerances.payloads, start=1):
        entries += [
            (f"picture {number}: {tolerance.of}", tolerance)
            for tolerance in payload
            if tolerance.error and "." not in tolerance.of
        ]
    if not entries:
        return ""
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td class=n>{tolerance.largest:.4g}</td>"
        f"<td class=n>{tolerance.error:.2e}</td><td class=n>{tolerance.allowed:.2e}</td></tr>"
        for name, tolerance in entries
    )
    kinds = {column.kind for column in table.columns}
    exact = " Strings and integers must be identical." if kinds - {"number"} else ""
    return (
        "<details><summary>Numerical precision</summary>"
        "<p>Another processor may add the same numbers in another order, so the last digits differ. The "
        "error is the largest difference from the same computation in float64. A number may differ by up to "
        f"{FACTOR} times the error, or by 32 units in the last place of the largest number if that is more."
        f"{exact}</p><div class=scroll tabindex=0 role=region aria-label=Tolerances><table><thead><tr>"
        "<th scope=col>numbers</th><th scope=col class=n>largest</th><th scope=col class=n>error</th>"
        f"<th scope=col class=n>tolerance</th></tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _provenance(provenance: Mapping[str, Any]) -> str:
    entries = "".join(
        f"<dt>{_text(name.replace('_', ' '))}</dt><dd>{_value(value)}</dd>"
        for name, value in provenance.items()
        if value not in (None, "", [], {})
    )
    return f"<details><summary>Provenance</summary><dl>{entries}</dl></details>"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{_text(name)}: {_value(child)}" for name, child in value.items())
    if isinstance(value, list | tuple):
        return "<br>".join(map(_value, value))
    return _text(value)


def _code(code: Mapping[str, str]) -> str:
    return (
        "<details><summary>Python and shell code</summary>"
        f"<pre tabindex=0><code>{_text(code['python'])}</code></pre>"
        f"<pre tabindex=0><code>{_text(code['shell'])}</code></pre></details>"
    )
