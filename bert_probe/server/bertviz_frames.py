"""BertViz views of a trace, each in a sandboxed frame that can reach neither the app nor the network.

BertViz writes text unescaped into a script and loads its libraries from a CDN. Therefore, BertViz receives
placeholders instead of tokens, and escaped text replaces the placeholders in its output. The libraries come
from installed packages, and a Content-Security-Policy gives each frame its own origin. Vig 2019, "A
Multiscale Visualization of Attention in the Transformer Model", describes the views.
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
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from bert_probe.api.routes import compressed_response
from bert_probe.errors import SelectionError, TooLongError
from bert_probe.model.trace import Array, Trace, resolve_index
from bert_probe.runtime import permissions
from bert_probe.views import palette

HEAD_VIEW_TOKENS: Final = 80
"""Maximum number of tokens in the head view of a model with up to 12 × 12 heads; see `head_view_limit`."""

MODEL_VIEW_TOKENS: Final = 48
"""Maximum number of tokens in the model view of a model with up to 72 heads; see `model_view_limit`."""

# Maximum number of SVG lines, one per visible head, query and key: a browser draws these in 2 to 3 seconds.
_HEAD_VIEW_LINES: Final = 12 * HEAD_VIEW_TOKENS**2
_MODEL_VIEW_LINES: Final = 72 * MODEL_VIEW_TOKENS**2
# Maximum number of weights in a page, which contains all layers; each weight takes about ten characters.
_WEIGHTS: Final = 144 * HEAD_VIEW_TOKENS**2

HEAD_VIEW_CAPTION: Final = (
    "BertViz head view. Lines run from each token (left) to the tokens it attends to (right); the "
    "opacity of a line is its weight divided by the number of visible heads. The colored squares are "
    "the heads, counted from 1: click a square to hide or show its head, double-click to see only that "
    "head. A strong weight shows where a head attends, not what caused a result."
)

MODEL_VIEW_CAPTION: Final = (
    "BertViz model view: all heads of all layers, counted from 1. Click a cell to enlarge it. A strong "
    "weight shows where a head attends, not what caused a result."
)

# Sizes in BertViz 1.4.1 drawings, in CSS pixels, from which the height of a frame is computed.
_HEAD_VIEW_ROW, _HEAD_VIEW_TOP = 22.5, 30
_MODEL_VIEW_WIDTH, _MODEL_VIEW_AXIS, _THUMBNAIL_PADDING = 970, 38, 10
_DETAIL_ROW, _DETAIL_FRAME = 18, 55
_CONTROLS, _MARGIN, _SCROLLBAR = 44, 24, 16

_STORE_BYTES: Final = 64 * 1024 * 1024
# Placeholder in a stored frame for the CSP nonce, which is new for each response.
_NONCE_MARK: Final = secrets.token_hex(16)

_PLACEHOLDER = re.compile(r'"token-(\d+)"')

_LIBRARIES: Final = {
    "d3": ("mpld3", "mpld3/js/d3.v5.min.js"),
    "jquery": ("xstatic-jquery", "xstatic/pkg/jquery/data/jquery.min.js"),
}


@dataclass(frozen=True)
class BertVizFrame:
    """A rendered view, displayed with ``st.iframe(frame.url, height=frame.height, alt=frame.title)``."""

    url: str  # path on this server; valid while the frame is stored
    height: int  # height of the complete drawing in CSS pixels, so that only the page scrolls
    title: str  # text alternative for screen readers
    caption: str  # explanation of the view and of its limits


class FrameStore:
    """A thread-safe LRU cache of rendered frames.

    The id of a frame is a keyed digest of its content. The same view has the same id during the lifetime of
    the process, and the id for another user's text cannot be guessed.

    Args:
        max_bytes: Limit of the total size of all frames.
    """

    def __init__(self, max_bytes: int = _STORE_BYTES) -> None:
        self._frames: LRUCache[str, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(32)

    def put(self, key: bytes, render: Callable[[], bytes]) -> str:
        """Return the id of the frame for a content key; render the frame if it is not stored.

        Raises:
            ValueError: The frame is larger than the store.
        """
        frame_id = hmac.new(self._secret, key, hashlib.sha256).hexdigest()[:40]
        if self.get(frame_id) is None:
            # Rendering is slow, so it runs without the lock. At worst, two threads render the same frame.
            page = render()
            with self._lock:
                self._frames[frame_id] = page
        return frame_id

    def get(self, frame_id: str) -> bytes | None:
        """Return the frame's HTML page, or None if it is not stored."""
        with self._lock:
            page: bytes | None = self._frames.get(frame_id)
            return page


STORE: Final = FrameStore()
"""The store from which `routes` serve frames."""


def head_view_limit(layers: int, heads: int) -> int:
    """Return the maximum number of tokens in the head view for a model with `layers` × `heads` heads."""
    squared = min(_HEAD_VIEW_LINES / heads, _WEIGHTS / (layers * heads))
    return min(HEAD_VIEW_TOKENS, math.isqrt(int(squared)))


def model_view_limit(layers: int, heads: int) -> int:
    """Return the maximum number of tokens in the model view for a model with `layers` × `heads` heads."""
    return min(MODEL_VIEW_TOKENS, math.isqrt(_MODEL_VIEW_LINES // (layers * heads)))


def head_view(
    trace: Trace, layer: int, heads: Sequence[int] | None, dark: bool, store: FrameStore = STORE
) -> BertVizFrame:
    """Return BertViz's head view; the user can change its layer and heads in the frame.

    Args:
        trace: The text and its attention.
        layer: Index of the initial layer.
        heads: Indices of the initial heads; by default all.
        dark: Whether to use colors for a dark page.
        store: Store for the frame.

    Raises:
        TooLongError: The text has more tokens than `head_view_limit`.
        SelectionError: The layer or a head does not exist, or `heads` is empty.
    """
    layer = resolve_index(layer, trace.layers, "layer")
    head_indices = _heads(trace, heads)
    _check_length(trace, "head view", head_view_limit(trace.layers, trace.heads), trace.heads)
    weights = _weights(trace)

    def render() -> bytes:
        from bertviz import head_view as draw  # imported on first use, because it imports torch

        drawing = draw(
            **_arguments(trace, weights), layer=layer, heads=head_indices, html_action="return"
        ).data
        return _page("BertViz head view", drawing, trace, dark, palette.HEADS)

    return BertVizFrame(
        url=_url(store, _key("head", trace, weights, dark, layer, head_indices), render),
        height=math.ceil(len(trace.encoding) * _HEAD_VIEW_ROW) + _HEAD_VIEW_TOP + _CONTROLS + _MARGIN,
        title=f"BertViz head view of {len(trace.encoding)} tokens, opened at layer {layer + 1}",
        caption=HEAD_VIEW_CAPTION,
    )


def model_view(trace: Trace, dark: bool, store: FrameStore = STORE) -> BertVizFrame:
    """Return BertViz's model view: thumbnails of all heads in all layers; a click enlarges a thumbnail.

    Args:
        trace: The text and its attention.
        dark: Whether to use colors for a dark page.
        store: Store for the frame.

    Raises:
        TooLongError: The text has more tokens than `model_view_limit`.
    """
    limit = model_view_limit(trace.layers, trace.heads)
    _check_length(trace, "model view", limit, trace.layers * trace.heads)
    weights = _weights(trace)

    def render() -> bytes:
        from bertviz import model_view as draw

        mode = "dark" if dark else "light"
        drawing = draw(**_arguments(trace, weights), display_mode=mode, html_action="return").data
        # BertViz colors this view by layer, although its rows already show the layers.
        # A single accent color cannot be mistaken for the head colors of the app.
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
        raise SelectionError("No head is selected. Select at least one head.")
    return sorted({resolve_index(head, trace.heads, "head") for head in heads})


def _check_length(trace: Trace, view: str, limit: int, heads: int) -> None:
    tokens = len(trace.encoding)
    if tokens > limit:
        raise TooLongError(
            f"The text has {tokens:,} tokens, but BertViz's {view} of this model is limited to {limit}. "
            f"BertViz draws one line for each head, query and key, here {heads * tokens**2:,}, which would "
            "freeze the browser. Use the heatmap, which does not have this limit, or shorten the text."
        )


def _model_view_height(trace: Trace) -> int:
    tokens = len(trace.encoding)
    rows = trace.layers * (tokens * 7 * 12 / trace.heads + _THUMBNAIL_PADDING) + _MODEL_VIEW_AXIS
    drawing = max(rows, tokens * _DETAIL_ROW + _DETAIL_FRAME)
    controls = 0 if _second_start(trace) is None else _CONTROLS
    # The scrollbar needs space because it appears on narrow screens.
    return math.ceil(drawing) + controls + _MARGIN + _SCROLLBAR


def _weights(trace: Trace) -> Array:
    """Return the attention of all layers as an array of shape [layer, head, query, key]."""
    return np.stack([trace.attention(layer) for layer in range(trace.layers)])


def _second_start(trace: Trace) -> int | None:
    """Return the position of the first token of the second text, or None without a second text."""
    if trace.encoding.pair is None:
        return None
    return next((token.position for token in trace.tokens if token.segment == 1), None)


def _arguments(trace: Trace, weights: Array) -> dict[str, object]:
    """Return the arguments for both BertViz views; placeholders replace the tokens, which are user text."""
    import torch

    # Six decimals are enough for drawing and halve the size of the JSON. In float32, rounded numbers would
    # still be written with all digits.
    rounded = torch.from_numpy(np.round(weights.astype(np.float64), 6))
    return {
        "attention": [layer[None] for layer in rounded],
        "tokens": [f"token-{position}" for position in range(len(trace.encoding))],
        "sentence_b_start": _second_start(trace),
        "prettify_tokens": False,
    }


def _key(view: str, trace: Trace, weights: Array, dark: bool, *options: object) -> bytes:
    """Return a digest of all values that determine a frame."""
    tokens = [token.display for token in trace.tokens]
    content = [view, tokens, _second_start(trace), weights.shape, dark, options]
    digest = hashlib.sha256(json.dumps(content).encode())
    # Hash the attention weights, not the model's name: the trace may come from a modified model.
    digest.update(weights.tobytes())
    return digest.digest()


def _url(store: FrameStore, key: bytes, render: Callable[[], bytes]) -> str:
    return f"/bertviz/{store.put(key, render)}"


def _page(title: str, drawing: str, trace: Trace, dark: bool, colors: Sequence[str]) -> bytes:
    """Build an HTML page from the output of BertViz: a script tag for the CDN, a div, and a script."""
    _cdn, cdn_end, remainder = drawing.partition("</script>")
    markup, script_start, script = remainder.partition('<script type="text/javascript">')
    script, script_end, _after = script.rpartition("</script>")
    # A comment in BertViz's template repeats all of the data, so the first line of the comment is removed.
    code, comment_start, comment = script.partition("; // HACK: ")
    if not (cdn_end and script_start and script_end and comment_start):
        raise RuntimeError("The output of BertViz does not have the structure that BertViz 1.4.1 produces.")
    code = _with_tokens(code, trace) + ";" + comment[comment.index("\n") :]
    longest = max(len(token.display) for token in trace.tokens)
    nonce = f'nonce="{_NONCE_MARK}"'
    return "\n".join(
        (
            "<!doctype html>",
            f'<html lang="en" class="{"dark" if dark else "light"}">',
            f'<head><meta charset="utf-8"><title>{html.escape(title)}</title>',
            f"<style>{_variables(dark, longest)}\n{_static('frame.css')}</style></head>",
            f'<body data-colors="{html.escape(json.dumps(list(colors)))}">{markup}',
            f'<script {nonce} src="{_library_url("jquery")}"></script>',
            f'<script {nonce} src="{_library_url("d3")}"></script>',
            f"<script {nonce}>{_static('frame_before.js')}</script>",
            f"<script {nonce}>{code}</script>",
            f"<script {nonce}>{_static('frame_after.js')}</script>",
            "</body></html>",
        )
    ).encode()


def _with_tokens(code: str, trace: Trace) -> str:
    """Return BertViz's script with its placeholders replaced by the tokens."""
    literals = [_script_string(token.display) for token in trace.tokens]
    return _PLACEHOLDER.sub(lambda match: literals[int(match[1])], code)


def _script_string(text: str) -> str:
    """Return a JavaScript string literal that is safe in a script element: ASCII without HTML characters."""
    return re.sub(r"[<>&/']", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text))


def _variables(dark: bool, longest: int) -> str:
    """Return a CSS rule with a frame's variables: theme colors, and extra width for the longest token."""
    variables = {
        "paper": palette.PAPER_DARK if dark else palette.PAPER_LIGHT,
        "ink": palette.INK_DARK if dark else palette.INK_LIGHT,
        "accent": palette.ACCENT_DARK if dark else palette.ACCENT_LIGHT,
        "line": "#4A4956" if dark else "#CFC9BC",
        "hover": "#33323F" if dark else "#E6E1D6",
        "overhang": f"{min(max(0, longest * 9 - 96), 480)}px",
    }
    scheme = "dark" if dark else "light"
    return f":root {{ color-scheme: {scheme}; {' '.join(f'--{k}: {v};' for k, v in variables.items())} }}"


@cache
def _static(name: str) -> str:
    return Path(__file__).with_name("static").joinpath(name).read_text(encoding="utf-8")


@cache
def library(name: str) -> bytes:
    """Return the code of d3 5.7.0 or of jQuery from the installed package that contains it."""
    package, path = _LIBRARIES[name]
    return Path(str(distribution(package).locate_file(path))).read_bytes()


def _library_url(name: str) -> str:
    # The URL is relative to the URL of a frame.
    # The URL contains a digest, because browsers cache the library forever.
    return f"lib/{name}.js?{hashlib.sha256(library(name)).hexdigest()[:12]}"


def frame_policy(nonce: str) -> str:
    """Return the Content-Security-Policy of a frame.

    Only scripts of this response may run, and only pages of this server may embed the frame.
    """
    return "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            "style-src 'unsafe-inline'",
            "img-src data:",
            f"frame-ancestors {permissions.current().frame_sources}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _serve_frame(request: Request) -> Response:
    page = STORE.get(request.path_params["frame_id"])
    if page is None:
        return PlainTextResponse(
            "This view has expired. Run the text again.",
            status_code=404,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"},
        )
    nonce = secrets.token_urlsafe(16)
    return compressed_response(
        request,
        page.replace(_NONCE_MARK.encode(), nonce.encode()),
        {"Content-Security-Policy": frame_policy(nonce), "Cache-Control": "no-store"},
        "text/html",
    )


def _serve_library(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _LIBRARIES:
        return PlainTextResponse("Unknown library.", status_code=404)
    return Response(
        library(name),
        media_type="text/javascript",
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


def routes() -> list[BaseRoute]:
    """Return the HTTP routes that serve BertViz frames and their JavaScript libraries."""
    return [
        Route("/bertviz/lib/{name}.js", _serve_library),
        Route("/bertviz/{frame_id}", _serve_frame),
    ]
