"""Streamlit components built from `js/`: heatmap, token strip, head view, model view, layer map, toolbar.

A component sends each user selection with a new, higher revision, and the server answers with the revision
that it has drawn. The browser ignores the answer of an outdated script run, because its revision is lower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import streamlit as st
from numpy.typing import ArrayLike
from streamlit.components.v2 import component

from bert_probe.server import sessions
from bert_probe.views import built
from bert_probe.views import matrix as matrix_views
from bert_probe.views.matrix import Cell, Heatmap, HeatmapSpec
from bert_probe.views.text import StripToken, selected_position, strip_data, strip_digest

if TYPE_CHECKING:
    from bert_probe.analyses.vectors.token_map import TokenMapResult
    from bert_probe.views.layer_map import MapSelection, MapView
    from bert_probe.views.model_view import HeadThumbnail

_STARTS: Final = "component revisions"
"""Session key of a mapping from component keys to initial revisions."""


def matrix(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    key: str,
    **drawing: Unpack[HeatmapSpec],
) -> Cell | None:
    """Draw a matrix as a heatmap and return the cell that the user pinned, if any.

    The pinned cell is kept in reruns as long as the labels are the same.

    Args:
        values: the matrix, [row, column]; the cells of NaN values are hatched.
        rows, columns: labels of the rows and columns.
        key: key of the component.
        drawing: drawing options; see `HeatmapSpec`.

    Raises:
        ValueError: the labels do not match the shape of the matrix, or a value is infinite.
    """
    revision, report = latest_choice(key, "cell", matrix_views.digest(rows, columns))
    pinned = matrix_views.pinned_cell(report, (len(rows), len(columns)))
    data = matrix_views.payload(values, rows, columns, key=key, pinned=pinned, revision=revision, **drawing)
    _matrix(key=key, data=data, on_cell_change=_ignore)
    return pinned


def heatmap(data: Heatmap, *, key: str) -> Cell | None:
    """Draw a `Heatmap` and return the pinned cell, if any; see `matrix`."""
    return matrix(data.values, data.rows, data.columns, key=key, **data.drawing)


def strip(
    pieces: Sequence[StripToken],
    *,
    key: str,
    label: str,
    selectable: Literal["none", "one"] = "none",
    selected: int | None = None,
    row: bool = False,
    text: str | None = None,
) -> int | None:
    """Draw tokens in order; with `selectable="one"` return the selected position, if any.

    The user's selection is kept in reruns until `text` changes. If the same text is split into other tokens,
    the token that contains the selected position is selected.

    Args:
        pieces: the tokens.
        key: key of the component.
        label: description for screen readers.
        selectable: whether the user can select a token.
        selected: the initially selected position; None for none.
        row: whether to keep all tokens in one row, which scrolls.
        text: identifies the text; by default a digest of the tokens.

    Raises:
        ValueError: a position is repeated, or `selected` is not the position of a token.
    """
    name = strip_digest(pieces) if text is None else text
    revision, report = latest_choice(key, "token", name)
    position = selected_position(report, pieces, selected)
    data = strip_data(pieces, key=key, of=name, label=label, selectable=selectable, row=row)
    _strip(key=key, data={**data, "revision": revision, "selected": position}, on_token_change=_ignore)
    return None if selectable == "none" else position


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a head view from `views.head_view.payload`; call ``on_change`` when the user changes the view."""
    _head_view(key=key, data=data, on_selection_change=on_change)


def model_view(
    data: bytes, shape: tuple[int, int], *, key: str, on_open: Callable[[HeadThumbnail], None] | None = None
) -> HeadThumbnail | None:
    """Draw the model view and return the head that was just clicked, once per click.

    `shape` is the number of layers and of heads. `on_open` is called before the script reruns, so it may set
    the values of widgets.
    """
    from bert_probe.views.model_view import read_opened_head  # imported on first use: imports torch

    def on_click() -> None:
        head = read_opened_head(st.session_state.get(key), shape)
        if head is not None and on_open is not None:
            on_open(head)

    # Streamlit returns a trigger value only if a callback is registered for this value.
    return read_opened_head(_model_view(key=key, data=data, on_opened_change=on_click), shape)


def layer_map(result: TokenMapResult, *, key: str, start: MapView) -> tuple[MapSelection, MapView | None]:
    """Draw the layer map; return the user's selection, and the current view if the user changed it.

    `start` is the initial view. Pass the same view for the same result, because a changed view sends all
    points to the browser again.
    """
    from bert_probe.views import layer_map as views  # slow: imports torch

    of = views.digest(result)
    data = views.payload(result, key=key, start=start, began=initial_revision(key))
    values = _layer_map(key=key, data=data, on_selection_change=_ignore, on_display_change=_ignore)
    return (
        views.read_selection(values, of, len(result.marks)),
        views.read_view(values, of, result.layers),
    )


def toolbar(data: Mapping[str, Any], *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a toolbar from `views.head_view.initial_state`; call ``on_change`` when the selection changes."""
    _toolbar(key=key, data=data, on_selection_change=on_change)


def initial_revision(key: str) -> int:
    """Return the initial revision of a component. Call this before the component is drawn.

    A component that the previous run did not draw gets a new initial revision. The revision is the current
    time, so that it exceeds any revision that the browser remembers.
    """
    starts: dict[str, int] = st.session_state.setdefault(_STARTS, {})
    if key not in starts or key not in st.session_state:
        starts[key] = time.time_ns() // 1_000_000
    return starts[key]


def latest_choice(key: str, name: str, of: str) -> tuple[int, Mapping[str, Any] | None]:
    """Return the revision of the user's last choice for the current data, and the choice.

    If there is no such choice, return the initial revision and None. The caller sends the revision to the
    component, which keeps its own choice for the same data unless its revision is lower.

    Args:
        key: key of the component.
        name: name of the component's state value that contains the user's choice.
        of: digest of the current data; choices for other data are ignored.
    """
    first, state = initial_revision(key), st.session_state.get(key)
    report = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != of:
        return first, None
    revision = report.get("revision")
    if type(revision) is not int or not first < revision < 2**53:
        return first, None
    return revision, report


def _mounted(name: str) -> Any:
    """Return a Streamlit component that draws one of `built.COMPONENTS`.

    The browser fetches the module once; Streamlit would send it again with every mounted element.
    """
    # The strip's element becomes a list or a radio group, which ARIA does not allow for a section.
    tag = "div" if name == "strip" else "section"
    return component(
        f"bert_probe.{name}",
        html=f'<{tag} class="{built.COMPONENTS[name]}"></{tag}>',
        # Streamlit treats a single line as a file path, so the CSS and the JavaScript have two or more lines.
        css=built.style(name),
        js=(
            f"const script = await import(`${{location.origin}}{sessions.script_path(name)}`);\n"
            "export default script.default;"
        ),
    )


def _ignore() -> None:
    """Do nothing. Streamlit returns a state value only if a callback is registered for this value."""


_head_view = _mounted("head_view")
_layer_map = _mounted("layer_map")
_matrix = _mounted("matrix")
_model_view = _mounted("model_view")
_strip = _mounted("strip")
_toolbar = _mounted("toolbar")
