"""A report's page: what it states, as HTML. All that people or models wrote is escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bert_probe.reports import notes
from bert_probe.reports.numbers import ViewTolerances
from bert_probe.reports.tables import Table, digest
from bert_probe.reports.tolerances import FACTOR
from bert_probe.views import built
from bert_probe.views.page import CLASSES, theme

MOST_ROWS: Final = 200
MOST_COLUMNS: Final = 60
"""Of a table as it is shown; the page holds the whole one."""

_FOLDER: Final = Path(__file__).parent
_OURS: Final = ("bert_probe", "bert-probe")
"""Names of the package among the versions."""


def written(stated: Mapping[str, Any]) -> str:
    """The page of what a report states.

    Raises:
        ReportError: a part of it is not what a report holds.
    """
    views = stated["views"]
    components = sorted({view["picture"].get("component", "") for view in views} - {""})
    fields = {
        "title": _text(stated["title"]),
        "style": theme("system") + (_FOLDER / "report.css").read_text(encoding="utf-8"),
        "lead": _lead(stated),
        "contents": _contents(views),
        "views": "\n".join(_view(number, view) for number, view in enumerate(views, start=1)),
        "styles": "".join(_styles(component) for component in components),
        "script": built.script("report_page"),
        # A < of a text would end the script that holds it.
        "stated": json.dumps(stated, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    made = (_FOLDER / "report.html").read_text(encoding="utf-8")
    # Of several fields each in one pass: what a text holds is never taken for a field.
    parts = made.split("<!--")
    body = parts[0] + "".join(_filled(part, fields) for part in parts[1:])
    whole = body.encode("utf-8", "backslashreplace")  # half a surrogate pair, as a text may hold
    return f"{whole.decode()}<!-- SHA-256 of all above: {digest(whole)} -->\n"


ENDING: Final = r"<!-- SHA-256 of all above: ([0-9a-f]{64}) -->\n?\Z"
"""The last line of a report's page, as a pattern."""


def _filled(part: str, fields: Mapping[str, str]) -> str:
    name, _, rest = part.partition("-->")
    return f"{fields[name]}{rest}"


def _styles(component: str) -> str:
    return f'<template id="style-{component}"><style>{built.style(component)}</style></template>'


def _text(text: object) -> str:
    return html.escape(str(text))


def _lead(stated: Mapping[str, Any]) -> str:
    views, made_with = stated["views"], stated["made_with"]
    models = dict.fromkeys(
        str(view["provenance"].get("model", "")) for view in views if view["provenance"].get("model")
    )
    versions = ", ".join(f"{name} {version}" for name, version in made_with.items() if name not in _OURS)
    count = f"{len(views)} views" if len(views) != 1 else "One view"
    return (
        f"<p>{count} of {_text(', '.join(models))}</p>"
        f"<p class=quiet>Made with BERT Probe {_text(made_with.get('bert_probe', ''))} ({_text(versions)}). "
        "<code>bert-probe verify</code> computes every number of this file again and says which differ.</p>"
    )


def _contents(views: Sequence[Mapping[str, Any]]) -> str:
    if len(views) < 2:
        return ""
    lines = (
        f'<li><a href="#view-{number}">{_text(view["title"])}</a></li>'
        for number, view in enumerate(views, start=1)
    )
    return f"<nav aria-label=Views><ol>{''.join(lines)}</ol></nav>"


def _view(number: int, one: Mapping[str, Any]) -> str:
    table = Table.from_json(one["table"])
    return (
        f'<article id="view-{number}"><h2><span class=number>{number}</span> {_text(one["title"])}</h2>'
        f"{_texts(one['provenance'])}{_note(one['note'], table)}{_picture(number, one)}"
        f"{_table(number, table, is_open=not one['picture'].get('component'))}"
        f"{_exactness(ViewTolerances.from_json(one['tolerances']), table)}"
        f"{_provenance(one['provenance'])}{_code(one['code'])}</article>"
    )


def _texts(provenance: Mapping[str, Any]) -> str:
    """The texts of a view, as they were read."""
    told = provenance.get("texts") or ([provenance] if provenance.get("text") else [])
    lines = [f"<p>{_text(part)}</p>" for one in told for part in (one.get("text"), one.get("pair")) if part]
    return f"<blockquote>{''.join(lines)}</blockquote>" if lines else ""


def _note(note: Mapping[str, str], table: Table) -> str:
    """A note; its numbers by reference are marked, and stand in elements of their own."""
    if not note["written"]:
        return ""
    parts = [
        _text(piece.text)
        if piece.row is None or piece.column is None
        else f'<data title="row {piece.row + 1}, {_text(table.columns[piece.column].name)}">'
        f"{_text(piece.text)}</data>"
        for piece in notes.pieces(note["written"], table)
    ]
    return f"<p class=note>{''.join(parts)}</p>"


def _picture(number: int, one: Mapping[str, Any]) -> str:
    component = one["picture"].get("component")
    if not component:
        return ""
    caveat = one["picture"].get("caveat")
    said = f"<figcaption>{_text(caveat)}</figcaption>" if caveat else ""
    name = _text(CLASSES.get(component, component))
    return (
        f'<figure><div class=picture data-view="{number - 1}" data-class="{name}">'
        "<noscript>The picture needs JavaScript; the table holds its numbers.</noscript>"
        f"</div>{said}</figure>"
    )


def _table(number: int, table: Table, is_open: bool) -> str:
    columns = table.columns[:MOST_COLUMNS]
    rows = range(min(table.rows, MOST_ROWS))
    head = "".join(f"<th scope=col{_align(column.kind)}>{_text(column.name)}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_align(column.kind)}>{_text(table.cell(row, place))}</td>"
            for place, column in enumerate(columns)
        )
        + "</tr>"
        for row in rows
    )
    size = f"{_counted(table.rows, 'row')}, {_counted(len(table.columns), 'column')}"
    left = _left_out(table)
    return (
        f"<details{' open' if is_open else ''}><summary>Table <span class=quiet>{size}</span></summary>"
        f"<div class=bar>{left}<button type=button data-csv={number - 1}>Save as CSV</button></div>"
        f'<div class=scroll tabindex=0 role=region aria-label="Table of view {number}">'
        f"<table data-view={number - 1}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div></details>"
    )


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _left_out(table: Table) -> str:
    """What of a table is not shown."""
    cut = [
        f"the first {most} of {count:,} {name}"
        for count, most, name in (
            (table.rows, MOST_ROWS, "rows"),
            (len(table.columns), MOST_COLUMNS, "columns"),
        )
        if count > most
    ]
    shown = (
        f"Shown are {' and '.join(cut)}. The file holds all of them" if cut else "The file holds every digit"
    )
    return f"<span class=quiet>{shown}.</span>"


def _align(kind: str) -> str:
    return " class=n" if kind in ("number", "integer") else ""


def _exactness(bounds: ViewTolerances, table: Table) -> str:
    """The tolerances of a view's numbers, and where they come from."""
    lines = [(one.of or "all numbers of the matrix", one) for one in bounds.table]
    lines += [(f"beside the table: {one.of}", one) for one in bounds.said if one.largest]
    for place, part in enumerate(bounds.drawn, start=1):
        lines += [(f"picture {place}: {one.of}", one) for one in part if one.error and "." not in one.of]
    if not lines:
        return ""
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td class=n>{one.largest:.4g}</td><td class=n>{one.error:.2e}</td>"
        f"<td class=n>{one.allowed:.2e}</td></tr>"
        for name, one in lines
    )
    kinds = {column.kind for column in table.columns}
    exact = " Texts and whole numbers must be equal." if kinds - {"number"} else ""
    return (
        "<details><summary>How exact</summary>"
        "<p>Another processor adds the same numbers in another order, so last digits differ. The error is "
        "how far the numbers of this view are from those that the same weights give in float64; a number "
        f"may be off by {FACTOR} times that, and by 32 units in the last place of the largest number at "
        f"least.{exact}</p><div class=scroll tabindex=0 role=region aria-label=Tolerances><table><thead><tr>"
        "<th scope=col>numbers</th><th scope=col class=n>largest</th><th scope=col class=n>error</th>"
        f"<th scope=col class=n>tolerance</th></tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _provenance(provenance: Mapping[str, Any]) -> str:
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_value(value)}</dd>" for name, value in _lines(provenance))
    return f"<details><summary>Where it comes from</summary><dl>{lines}</dl></details>"


def _lines(provenance: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in provenance.items():
        if value not in (None, "", [], {}):
            yield name.replace("_", " "), value


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{_text(name)}: {_value(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return "<br>".join(_value(one) for one in value)
    return _text(value)


def _code(code: Mapping[str, str]) -> str:
    return (
        "<details><summary>The same in Python and in the shell</summary>"
        f"<pre tabindex=0><code>{_text(code['python'])}</code></pre>"
        f"<pre tabindex=0><code>{_text(code['shell'])}</code></pre></details>"
    )
