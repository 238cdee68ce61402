"""Genuine BertViz views of a trace, each in a frame that can reach nothing: no page, no server, no network.

BertViz writes text unescaped into a script and asks a CDN for its libraries. Here it is given placeholders
for the tokens, which are put in afterwards, escaped; its libraries come from installed packages; and the page
it makes is served under a policy that gives it an origin of its own. The views: Vig 2019, "A Multiscale
Visualization of Attention in the Transformer Model".
"""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import math
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import numpy as np
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from bert_probe.errors import SelectionError, TooLongError
from bert_probe.model.trace import Array, Trace, resolve
from bert_probe.views import palette

HEAD_VIEW_TOKENS: Final = 80
"""Longest text for the head view, in tokens; fewer where a layer has more than 12 heads."""

MODEL_VIEW_TOKENS: Final = 48
"""Longest text for the model view, in tokens; fewer where a model has more than 72 heads in all."""

# What a browser draws in two or three seconds: one SVG line for each head, query and key on the screen.
_HEAD_VIEW_LINES: Final = 12 * HEAD_VIEW_TOKENS**2
_MODEL_VIEW_LINES: Final = 72 * MODEL_VIEW_TOKENS**2
# The weights of all layers travel with either view, about ten characters each.
_WEIGHTS: Final = 144 * HEAD_VIEW_TOKENS**2

HEAD_VIEW_CAPTION: Final = (
    "BertViz head view. Lines run from each token (left) to the tokens it attends to (right); a line is as "
    "opaque as its weight, divided by the number of heads shown. The coloured squares are the heads from 1 "
    "on: click one to hide or show it, double-click to see it alone. A strong weight says where a head "
    "looks, not what caused a result."
)

MODEL_VIEW_CAPTION: Final = (
    "BertViz model view. Every head of every layer at once, layers and heads counted from 1; click a cell to "
    "enlarge it. A strong weight says where a head looks, not what caused a result."
)

# Measures of BertViz 1.4.1's drawings, in CSS pixels; a frame is as high as its drawing.
_HEAD_VIEW_ROW, _HEAD_VIEW_TOP = 22.5, 30
_MODEL_VIEW_WIDTH, _MODEL_VIEW_AXIS, _THUMBNAIL_PADDING = 970, 38, 10
_DETAIL_ROW, _DETAIL_FRAME = 18, 55
_CONTROLS, _MARGIN, _SCROLLBAR = 44, 24, 16

_STORE_BYTES: Final = 64 * 1024 * 1024
# Stands in a stored frame for the nonce, which is fresh for each response.
_NONCE_MARK: Final = secrets.token_hex(16)

_PLACEHOLDER = re.compile(r'"token-(\d+)"')

_LIBRARIES: Final = {
    "d3": ("mpld3", "mpld3/js/d3.v5.min.js"),
    "jquery": ("xstatic-jquery", "xstatic/pkg/jquery/data/jquery.min.js"),
}


@dataclass(frozen=True)
class BertVizFrame:
    """A view ready to be shown: ``st.iframe(frame.url, height=frame.height, alt=frame.title)``.

    Attributes:
        url: path on this server; it answers as long as the frame is in the store.
        height: of the whole drawing, in CSS pixels, so that only the page scrolls.
        title: what it is, for those who cannot see it.
        caption: a sentence or two to show beneath it: how to read it, and what it does not mean.
    """

    url: str
    height: int
    title: str
    caption: str


class FrameStore:
    """Rendered frames in memory, the least recently used thrown out; safe to use from several threads.

    Ids are a keyed digest of the content: the same view has the same id as long as the process lives, and
    nobody can guess that of somebody else's text.

    Args:
        max_bytes: of all frames together.
    """

    def __init__(self, max_bytes: int = _STORE_BYTES) -> None:
        self._frames: LRUCache[str, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(32)

    def put(self, key: bytes, render: Callable[[], bytes]) -> str:
        """Id of the frame with this content key; rendered only where the store does not hold it.

        Raises:
            ValueError: the frame alone is larger than the store.
        """
        frame_id = hmac.new(self._secret, key, hashlib.sha256).hexdigest()[:40]
        if self.get(frame_id) is None:
            # Outside the lock, since it takes a while: at worst two threads render the same.
            page = render()
            with self._lock:
                self._frames[frame_id] = page
        return frame_id

    def get(self, frame_id: str) -> bytes | None:
        """The frame's page, or None if there is none of this id, or no longer."""
        with self._lock:
            page: bytes | None = self._frames.get(frame_id)
            return page


STORE: Final = FrameStore()
"""What the routes serve from."""


def head_view_limit(layers: int, heads: int) -> int:
    """The longest text, in tokens, that the head view draws of a model of this size."""
    room = min(_HEAD_VIEW_LINES / heads, _WEIGHTS / (layers * heads))
    return min(HEAD_VIEW_TOKENS, math.isqrt(int(room)))


def model_view_limit(layers: int, heads: int) -> int:
    """The longest text, in tokens, that the model view draws of a model of this size."""
    return min(MODEL_VIEW_TOKENS, math.isqrt(_MODEL_VIEW_LINES // (layers * heads)))


def head_view(
    trace: Trace, layer: int, heads: Sequence[int] | None, dark: bool, store: FrameStore = STORE
) -> BertVizFrame:
    """BertViz's head view, opened at a layer and at some of its heads; both can be changed in the frame.

    Args:
        layer, heads: from 0; no heads: all of them.
        dark: colours for a dark page.

    Raises:
        TooLongError: more tokens than `head_view_limit`.
        SelectionError: no such layer or head, or an empty list of heads.
    """
    layer = resolve(layer, trace.layers, "layer")
    shown = _heads(trace, heads)
    _refuse(trace, "head view", head_view_limit(trace.layers, trace.heads), trace.heads)
    weights = _weights(trace)

    def render() -> bytes:
        from bertviz import head_view as draw  # late: it imports torch

        drawing = draw(**_arguments(trace, weights), layer=layer, heads=shown, html_action="return").data
        return _page("BertViz head view", drawing, trace, dark, palette.HEADS)

    return BertVizFrame(
        url=_url(store, _key("head", trace, weights, dark, layer, shown), render),
        height=math.ceil(len(trace.encoding) * _HEAD_VIEW_ROW) + _HEAD_VIEW_TOP + _CONTROLS + _MARGIN,
        title=f"BertViz head view of {len(trace.encoding)} tokens, opened at layer {layer + 1}",
        caption=HEAD_VIEW_CAPTION,
    )


def model_view(trace: Trace, dark: bool, store: FrameStore = STORE) -> BertVizFrame:
    """BertViz's model view: every head of every layer, small; a click enlarges one.

    Raises:
        TooLongError: more tokens than `model_view_limit`.
    """
    limit = model_view_limit(trace.layers, trace.heads)
    _refuse(trace, "model view", limit, trace.layers * trace.heads)
    weights = _weights(trace)

    def render() -> bytes:
        from bertviz import model_view as draw

        mode = "dark" if dark else "light"
        drawing = draw(**_arguments(trace, weights), display_mode=mode, html_action="return").data
        # BertViz colours layers, which the rows already tell; head colours here would mislead.
        accent = palette.ACCENT_DARK if dark else palette.ACCENT_LIGHT
        return _page("BertViz model view", drawing, trace, dark, (accent,) * 10)

    return BertVizFrame(
        url=_url(store, _key("model", trace, weights, dark), render),
        height=_model_view_height(trace),
        title=f"BertViz model view of {len(trace.encoding)} tokens, {trace.layers} × {trace.heads} heads",
        caption=MODEL_VIEW_CAPTION,
    )


def _heads(trace: Trace, heads: Sequence[int] | None) -> list[int] | None:
    if heads is None:
        return None
    if not heads:
        raise SelectionError("No head is chosen. Choose at least one.")
    return sorted({resolve(head, trace.heads, "head") for head in heads})


def _refuse(trace: Trace, view: str, limit: int, heads: int) -> None:
    tokens = len(trace.encoding)
    if tokens > limit:
        raise TooLongError(
            f"{tokens:,} tokens; BertViz's {view} of this model is drawn up to {limit}. It draws one line "
            f"for each head, query and key, here {heads * tokens**2:,}, and a browser would stand still. Use "
            "the heatmap, which has no such limit, or a shorter text."
        )


def _model_view_height(trace: Trace) -> int:
    tokens = len(trace.encoding)
    rows = trace.layers * (tokens * 7 * 12 / trace.heads + _THUMBNAIL_PADDING) + _MODEL_VIEW_AXIS
    drawing = max(rows, tokens * _DETAIL_ROW + _DETAIL_FRAME)
    controls = 0 if _second_start(trace) is None else _CONTROLS
    # On a narrow screen the frame scrolls sideways, and that bar needs room too.
    return math.ceil(drawing) + controls + _MARGIN + _SCROLLBAR


def _weights(trace: Trace) -> Array:
    """Attention of all layers, [layer, head, query, key], float32."""
    return np.stack([trace.attention(layer) for layer in range(trace.layers)])


def _second_start(trace: Trace) -> int | None:
    """Position of the first token of the second text, or None if there is only one."""
    if trace.encoding.pair is None:
        return None
    return next((token.position for token in trace.tokens if token.segment == 1), None)


def _arguments(trace: Trace, weights: Array) -> dict[str, object]:
    """What both views of BertViz are given: placeholders for tokens, so that it never writes user text."""
    import torch

    # Six decimals, as float64 so that they are written as six: half the size, and finer than any screen.
    rounded = torch.from_numpy(np.round(weights.astype(np.float64), 6))
    return {
        "attention": [layer[None] for layer in rounded],
        "tokens": [f"token-{position}" for position in range(len(trace.encoding))],
        "sentence_b_start": _second_start(trace),
        "prettify_tokens": False,
    }


def _key(view: str, trace: Trace, weights: Array, dark: bool, *options: object) -> bytes:
    """Digest of all that a frame shows; of the weights themselves, for a trace may be of an altered model."""
    tokens = [token.display for token in trace.tokens]
    causes = [view, tokens, _second_start(trace), weights.shape, dark, options]
    digest = hashlib.sha256(json.dumps(causes).encode())
    digest.update(weights.tobytes())
    return digest.digest()


def _url(store: FrameStore, key: bytes, render: Callable[[], bytes]) -> str:
    return f"/bertviz/{store.put(key, render)}"


def _page(title: str, drawing: str, trace: Trace, dark: bool, colours: Sequence[str]) -> bytes:
    """A whole HTML page from what BertViz returns: a CDN's script tag, a div, and a script."""
    _cdn, found, rest = drawing.partition("</script>")
    markup, found_script, script = rest.partition('<script type="text/javascript">')
    script, found_end, _after = script.rpartition("</script>")
    # The template's own comment repeats all of the data.
    code, found_comment, comment = script.partition("; // HACK: ")
    if not (found and found_script and found_end and found_comment):
        raise RuntimeError("BertViz returned a page of another shape than that of version 1.4.1.")
    code = _with_tokens(code, trace) + ";" + comment[comment.index("\n") :]
    longest = max(len(token.display) for token in trace.tokens)
    nonce = f'nonce="{_NONCE_MARK}"'
    return "\n".join(
        (
            "<!doctype html>",
            f'<html lang="en" class="{"dark" if dark else "light"}">',
            f'<head><meta charset="utf-8"><title>{html.escape(title)}</title>',
            f"<style>{_variables(dark, longest)}\n{_static('frame.css')}</style></head>",
            f'<body data-colours="{html.escape(json.dumps(list(colours)))}">{markup}',
            f'<script {nonce} src="{_library_url("jquery")}"></script>',
            f'<script {nonce} src="{_library_url("d3")}"></script>',
            f"<script {nonce}>{_static('frame_before.js')}</script>",
            f"<script {nonce}>{code}</script>",
            f"<script {nonce}>{_static('frame_after.js')}</script>",
            "</body></html>",
        )
    ).encode()


def _with_tokens(code: str, trace: Trace) -> str:
    """BertViz's script with the tokens in place of their placeholders."""
    written = [_script_string(token.display) for token in trace.tokens]
    return _PLACEHOLDER.sub(lambda match: written[int(match[1])], code)


def _script_string(text: str) -> str:
    """A string literal that is safe anywhere in a script element: ASCII, and nothing that HTML could read."""
    return re.sub(r"[<>&/']", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text))


def _variables(dark: bool, longest: int) -> str:
    """The colours of the theme, and the room that the longest token on the left needs."""
    colours = {
        "paper": palette.PAPER_DARK if dark else palette.PAPER_LIGHT,
        "ink": palette.INK_DARK if dark else palette.INK_LIGHT,
        "accent": palette.ACCENT_DARK if dark else palette.ACCENT_LIGHT,
        "line": "#4A4956" if dark else "#CFC9BC",
        "hover": "#33323F" if dark else "#E6E1D6",
        "overhang": f"{min(max(0, longest * 9 - 96), 480)}px",
    }
    scheme = "dark" if dark else "light"
    return f":root {{ color-scheme: {scheme}; {' '.join(f'--{k}: {v};' for k, v in colours.items())} }}"


@cache
def _static(name: str) -> str:
    return Path(__file__).with_name("static").joinpath(name).read_text(encoding="utf-8")


@cache
def library(name: str) -> bytes:
    """The code of d3 5.7.0 or of jQuery, read from the installed package that brings it."""
    package, path = _LIBRARIES[name]
    return Path(str(distribution(package).locate_file(path))).read_bytes()


def _library_url(name: str) -> str:
    """Relative to a frame's; with a digest, since browsers keep what it leads to for good."""
    return f"lib/{name}.js?{hashlib.sha256(library(name)).hexdigest()[:12]}"


def frame_policy(nonce: str) -> str:
    """What a frame may do: run the scripts of this very response, and be shown on our own pages."""
    return "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            "style-src 'unsafe-inline'",
            "img-src data:",
            "frame-ancestors 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _serve_frame(request: Request) -> Response:
    page = STORE.get(request.path_params["frame_id"])
    if page is None:
        return PlainTextResponse(
            "This view is no longer kept. Run the text again to draw it anew.",
            status_code=404,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"},
        )
    nonce = secrets.token_urlsafe(16)
    return HTMLResponse(
        page.replace(_NONCE_MARK.encode(), nonce.encode()),
        headers={"Content-Security-Policy": frame_policy(nonce), "Cache-Control": "no-store"},
    )


def _serve_library(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _LIBRARIES:
        return PlainTextResponse("There is no such library.", status_code=404)
    return Response(
        library(name),
        media_type="text/javascript",
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


def routes() -> list[BaseRoute]:
    """Where frames and their libraries are served."""
    return [
        Route("/bertviz/lib/{name}.js", _serve_library),
        Route("/bertviz/{frame_id}", _serve_frame),
    ]
