"""The Map page: token vectors of all layers, projected onto a plane.

The texts are those of the workbench or of an uploaded file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.vectors.token_map import CorpusTokenMap, TokenMap, TokenMapResult
from bert_probe.core import files
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks, paths
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.ui import blocks, jobs, labeled_inputs, state, workbench
from bert_probe.ui.components import layer_map
from bert_probe.ui.export import export
from bert_probe.views.layer_map import CAVEAT, COLORINGS, MODES, MapSelection, MapView, default_view, digest
from bert_probe.views.text import shorten

_MAX_CHARACTERS = 1_000
"""Maximum length of the text below the map, in characters. Longer texts are truncated."""

_SOURCES = {"text": "Your text", "file": "File"}
_BASES = {"shared": "Shared plane", "centred": "Layers centered", "own": "One plane per layer"}
_URL_KEYS = {"mode": "map_view", "layer": "map_layer", "by": "map_colour"}
_START = "map start"
"""Session key of (digest, initial view) of the current map. The initial view must not change while the map is
shown."""


def render() -> None:
    """Draw the Map page."""
    corner = blocks.heading_with_corner(
        "Map",
        "See the token vectors of all layers, projected onto one plane. Move through the layers, or "
        "click a token to see its path.",
    )
    checkpoint = workbench.checkpoint()
    source, options = _choose_options()
    try:
        texts = labeled_inputs.choose_map_file() if source == "file" else None
        if source == "file" and texts is None:
            st.info(
                "Choose a file with one text per line, or a table with a header. The table can have a "
                "column named label."
            )
            return
        truncate = workbench.request().truncate
        result = (
            _map_of_request(options)
            if texts is None
            else jobs.answer(
                "token map",
                CorpusTokenMap(**options).of,
                checkpoint,
                texts,
                truncate,
                label="Map the texts",
                unit="texts",
                start=True,
            )
        )
        if result is not None:
            _draw(result, texts, corner)
    except ProbeError as error:
        blocks.error_box(error, "Change the file above." if source == "file" else "")


def _choose_options() -> tuple[str, dict[str, Any]]:
    """Draw the widgets above the map; return the source of the texts and the arguments of `TokenMap`."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        source = state.segmented_control("map_from", "Source of the texts", _SOURCES, "text")
        basis = state.segmented_control("map_basis", "Projection", _BASES, "shared")
        words = state.toggle(
            "map_words",
            "Words",
            False,
            "Merge subword tokens: a word's vector is the mean of its tokens' vectors.",
        )
        specials = state.toggle(
            "map_specials",
            "Special tokens",
            False,
            "Include [CLS] and [SEP], which are often far from all other tokens.",
        )
    return source, {"words": words, "specials": specials, "basis": basis}


def _map_of_request(options: dict[str, Any]) -> TokenMapResult:
    traced = workbench.trace_request()
    traces = [trace for trace in (traced.a, traced.b) if trace is not None]
    for trace in traces:
        blocks.truncation_notice(trace)
    return shared_cache.answers.of(TokenMap(**options).of, *traces)


def _draw(
    result: TokenMapResult, texts: tuple[str, ...] | LabeledTexts | None, corner: DeltaGenerator
) -> None:
    """Draw the map, the table of coordinates below it, and, in `corner`, the Export menu."""
    selection, view = draw_map(result)
    selected, is_file = selection["selected"], texts is not None
    more = []
    if is_file and not result.part_names:
        lines = partial(_as_lines, result)
        more.append((f"{SENTENCES_FILE}, input of the code below", SENTENCES_FILE, lines))
    if selected:
        make = partial(_as_csv, result, selected)
        more.append((f"Selected rows ({len(selected):,}; CSV)", "map-selected.csv", make))
    with corner:
        export(result, "map", more, data={"rows": texts} if is_file else None)
    blocks.caveat(CAVEAT)
    if selection["pinned"] is not None:
        _token(result, selection["pinned"], is_file)
    _table(result, selection, view["layer"])


def _token(result: TokenMapResult, index: int, is_file: bool) -> None:
    """Draw the text that contains the pinned token, with buttons that open other pages."""
    mark = result.marks[index]
    text = result.texts[mark.text]
    part = f", {state.escape(result.part_names[mark.part])}" if result.part_names else ""
    where = f"text {mark.text + 1}{part}, position {mark.position}"
    st.markdown(f"**{state.escape(shorten(mark.display))}** in {where}:")
    st.text(" ".join(filter(None, text))[:_MAX_CHARACTERS])
    with st.container(horizontal=True):
        link = partial(st.button, on_click=_use_text if is_file else None, args=(text,) if is_file else None)
        if link("Show the attention of this text"):
            with callbacks.uninterrupted():
                st.switch_page(paths.page_script("attention"))
        if link("Show the token similarity of this text"):
            with callbacks.uninterrupted():
                st.switch_page(paths.page_script("similarity"))


def _use_text(text: tuple[str, str | None]) -> None:
    """Submit a text of the uploaded file to the workbench."""
    first, second = text
    request = replace(workbench.request(), a=first, b=second or "")
    workbench.submit(request if second is None else replace(request, relation="pair"))


def _table(result: TokenMapResult, selection: MapSelection, layer: int) -> None:
    """Draw a table of the coordinates of the selected tokens, or of all tokens if none is selected."""
    selected = selection["selected"]
    unit = "words" if result.question.words else "tokens"
    frame = result.some(selected or range(len(result.marks)), layer)
    blocks.table(
        frame,
        f"Coordinates of the {unit} at layer {layer}",
        max_height=320,
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in ("x", "y")},
    )
    if selected:
        st.caption(f"{len(selected):,} {unit} selected, at layer {layer}.")
    else:
        st.caption(
            f"All {unit} at layer {layer}. To filter them, use the lasso or press Enter in the search field."
        )


def _as_lines(result: TokenMapResult, _csv_safe: bool) -> bytes:
    return "\n".join(text for text, _ in result.texts).encode()


def _as_csv(result: TokenMapResult, selected: list[int], csv_safe: bool) -> bytes:
    return files.to_bytes(result.some(selected), "csv", csv_safe)


# ---------------------------------------------------------------- view


def draw_map(result: TokenMapResult) -> tuple[MapSelection, MapView]:
    """Draw the map; return the selection and the current view. The view is stored in the URL."""
    key, requested = digest(result), _view_of_url(result)
    if st.session_state.get(_START, ("",))[0] != key:
        st.session_state[_START] = (key, requested)
    selection, reported = layer_map(result, key="layer_map", start=st.session_state[_START][1])
    view = reported or requested
    default = default_view(result)
    for name, parameter in _URL_KEYS.items():
        value = cast(dict[str, object], view)[name]
        is_default = value == cast(dict[str, object], default)[name]
        state.remember(parameter, None if is_default else str(value))
    return selection, view


def _view_of_url(result: TokenMapResult) -> MapView:
    """Return the map view that the URL requests, and draw a caption for each invalid parameter."""
    parameters, view = state.url_parameters(), default_view(result)
    mode, layer, colour = (parameters.get(key) for key in _URL_KEYS.values())
    layers = [str(number) for number in range(result.layers + 1)]
    for name, label, value, options in (
        ("mode", "view", mode, MODES),
        ("layer", "layer", layer, layers),
        ("by", "color", colour, COLORINGS),
    ):
        if value is None:
            continue
        if value in options:
            view = cast(MapView, {**view, name: int(value) if name == "layer" else value})
        else:
            st.caption(f":orange[There is no {label} {state.escape(value)}; showing the default instead.]")
    return view
