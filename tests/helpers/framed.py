"""Reads the content of views that are complete HTML pages, in files or in notebook frames."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np

from bert_probe.notebook import Frame, HeadView


def extract_pages(document: str) -> list[str]:
    """Return the pages inside the frames of a cell's output."""
    return [html.unescape(page) for page in re.findall(r'<iframe [^>]*srcdoc="([^"]*)"', document)]


def find_elements(document: str) -> list[str]:
    """Return the tag names of all elements in an HTML document."""
    elements: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
            elements.append(tag)

    Elements().feed(document)
    return elements


def extract_payloads(page: str) -> list[bytes]:
    """Return the payloads of a page."""
    match = re.search(r'id="payload">(.*?)</script>', page, re.S)
    assert match is not None
    return [decode_text(*payload) for payload in json.loads(match[1])["payloads"]]


def decode_text(planes: int, length: int, text: str) -> bytes:
    """Return the payload that `payload.encode_text` encoded."""
    deflated = base64.b85decode(text.translate(str.maketrans(",./", "&<>")))[:length]
    content = np.frombuffer(zlib.decompress(deflated, wbits=-zlib.MAX_WBITS), np.uint8)
    return content.reshape(planes, -1).T.tobytes()


def extract_page(frame: Frame | HeadView) -> str:
    """Return the page inside a frame."""
    (page,) = extract_pages(frame._repr_html_())
    return page
