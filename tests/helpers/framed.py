"""What a view holds that is a page of its own, alone or in a notebook's frame."""

from __future__ import annotations

import base64
import html
import json
import re
from html.parser import HTMLParser

from bert_probe.notebook.frame import Frame


def pages_in(written: str) -> list[str]:
    """The pages inside the frames of a cell's output."""
    return [html.unescape(page) for page in re.findall(r'<iframe [^>]*srcdoc="([^"]*)"', written)]


def elements_of(written: str) -> list[str]:
    """The elements that a browser finds."""
    found: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
            found.append(tag)

    Elements().feed(written)
    return found


def payloads_of(page: str) -> list[bytes]:
    """What a page draws."""
    held = re.search(r'id="payload">(.*?)</script>', page, re.S)
    assert held is not None
    return [base64.b64decode(one) for one in json.loads(held[1])["payloads"]]


def page_of(frame: Frame) -> str:
    """The page inside a frame."""
    (page,) = pages_in(frame._repr_html_())
    return page
