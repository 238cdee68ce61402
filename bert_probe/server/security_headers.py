"""The security headers of every response, and the index page, whose inline scripts they allow."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

import streamlit

from bert_probe.runtime import permissions

INDEX_SCRIPT = Path(__file__).with_name("static").joinpath("index.js").read_text(encoding="utf-8")
"""Inline script that the app adds to the index page."""
INDEX_FILE = Path(streamlit.__file__).with_name("static").joinpath("index.html")
"""Streamlit's index page."""

_UNUSED_FEATURES = ("camera", "microphone", "geolocation", "payment", "usb", "serial", "midi")


def headers() -> dict[str, str]:
    """Return the headers to add to every response."""
    return {
        "Content-Security-Policy": app_policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Permissions-Policy": ", ".join(f"{feature}=()" for feature in _UNUSED_FEATURES),
    }


def app_policy() -> str:
    """Return the Content-Security-Policy of the pages.

    Pages can load resources from and connect to this server only, so they cannot send texts to other servers.
    """
    return "; ".join(
        (
            "default-src 'self'",
            # Streamlit components load their modules from blob: URLs.
            " ".join(("script-src 'self' blob:", *_inline_scripts())),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "frame-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            f"frame-ancestors {permissions.current().frame_sources}",
            "form-action 'self'",
        )
    )


@cache  # because `connections` sends the headers for every connection that exceeds a limit
def _inline_scripts() -> tuple[str, ...]:
    """Return the CSP hashes of the inline scripts of the index page."""
    page = INDEX_FILE.read_text(encoding="utf-8")
    scripts = [*re.findall(r"<script>(.*?)</script>", page, re.S), INDEX_SCRIPT]
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return tuple(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
