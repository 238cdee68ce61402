"""Reads the content of views that are complete pages, in files or in notebook frames."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np

from bert_probe.notebook import Frame, HeadView


def pages_in(document: str) -> list[str]:
    """Return the pages inside the frames of a cell's output."""
    return [html.unescape(page) for page in re.findall(r'<iframe [^>]*srcdoc="([^"]*)"', document)]


def elements_of(document: str) -> list[str]:
    """Return the elements that a browser finds."""
    elements: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
            elements.append(tag)

    Elements().feed(document)
    return elements


def payloads_of(page: str) -> list[bytes]:
    """Return the payloads of a page."""
    match = re.search(r'id="payload">(.*?)</script>', page, re.S)
    assert match is not None
    return [untexted(*payload) for payload in json.loads(match[1])["payloads"]]


def untexted(planes: int, length: int, text: str) -> bytes:
    """Return the bytes that `as_text` encoded."""
    deflated = base64.b85decode(text.translate(str.maketrans(",./", "&<>")))[:length]
    content = np.frombuffer(zlib.decompress(deflated, wbits=-zlib.MAX_WBITS), np.uint8)
    return content.reshape(planes, -1).T.tobytes()


def page_of(frame: Frame | HeadView) -> str:
    """Return the page inside a frame."""
    (page,) = pages_in(frame._repr_html_())
    return page
