"""Code blocks with highlighted syntax and a button that copies them."""

from __future__ import annotations

import html

from pygments import highlight as highlight_tokens
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound


def highlight(code: str, language: str) -> str:
    """Return a code block as HTML, with highlighted syntax if Pygments knows the language."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        lexer = None
    content = (
        html.escape(code) if lexer is None else highlight_tokens(code, lexer, HtmlFormatter(nowrap=True))
    )
    return (
        '<div class="code"><button type="button" class="copy" hidden>Copy</button>'
        f'<pre tabindex="0"><code>{content.rstrip()}</code></pre></div>'
    )
