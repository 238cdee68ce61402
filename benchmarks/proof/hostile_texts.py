"""Generate hostile texts from a seed: rare characters, injections, very long words and more."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.helpers.pages import HOSTILE, MARKDOWN

_BLOCKS = (
    *((0x0000, 0x00A0), (0x00A0, 0x0250), (0x0300, 0x0370), (0x0370, 0x0530), (0x0590, 0x0780)),
    *((0x0900, 0x0E80), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2100, 0x2C00)),
    *((0x3040, 0x3130), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0xFB00, 0xFE00)),
    *((0xFE00, 0x10000), (0x10000, 0x10400), (0x1D400, 0x1D800), (0x1F000, 0x1FAF0), (0xE0000, 0xE01F0)),
    (0x10FF00, 0x110000),
)
"""Ranges of code points without surrogates, as (first, last + 1)."""
_BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"
_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u115f\u3164\ufffe\uffff\u2028\u2029\x85"
_SPACES = " \t\n\r\v\f\u00a0\u1680\u2003\u202f\u205f\u3000"
_WORDS = (
    *(
        "we",
        "left",
        "the",
        "ground",
        "unhappiest",
        "can't",
        "naïve",
        "Straße",
        "東京",
        "İstanbul",
        "ﷺ",
        "ﬃ",
        "😀",
    ),
    *(
        "👩‍👩‍👧‍👦",
        "[CLS]",
        "[SEP]",
        "[PAD]",
        "[MASK]",
        "[UNK]",
        "<s>",
        "</s>",
        "##ing",
        "▁",
        "Ġ",
        "⟨F0⟩",
        "␣",
        "<unk>",
    ),
)
INJECTIONS = (
    HOSTILE,
    *MARKDOWN,
    '"}]}</script><script>window.__pwned=1</script>',
    "<svg onload=window.__pwned=1>",
    "<iframe src=javascript:window.__pwned=1></iframe>",
    "<style>*{background:url(http://192.0.2.1/x)}</style>",
    "<img src=http://192.0.2.1/x><link rel=stylesheet href=//192.0.2.1/x>",
    "javascript:window.__pwned=1",
    "'-window.__pwned=1-'",
    "${window.__pwned=1}`{{7*7}}`<%= 1 %>",
    "--><!-- ]]> <![CDATA[",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://192.0.2.1","x")',
    'a,b;"c""d"\r\ne\tf',
    '"',
    "'",
    "\\",
    "\\u0000",
    '{"a": [1, NaN, null]}',
    "%s %d %n %x {0} {x.__class__}",
    "'; DROP TABLE tokens; --",
    "../../../etc/passwd",
    "--help",
    "-",
    "--out=/etc/x",
    "\x1b[2J\x1b]0;title\x07",
    "a\x00b",
)


def texts(lots: random.Random, total: int) -> Iterator[str]:
    """Yield random texts from each generator in turn."""
    for number in range(total):
        yield _KINDS[number % len(_KINDS)](lots)


def _of_blocks(lots: random.Random) -> str:
    low, high = lots.choice(_BLOCKS)
    return "".join(chr(lots.randrange(low, high)) for _ in range(lots.randrange(1, 40)))


def _of_all(lots: random.Random) -> str:
    return " ".join(_of_blocks(lots)[: lots.randrange(1, 6)] for _ in range(lots.randrange(1, 12)))


def _controls(lots: random.Random) -> str:
    return "".join(
        lots.choice((chr(lots.randrange(0x20)), chr(lots.randrange(0x7F, 0xA0)), "a")) for _ in range(30)
    )


def _unseen(lots: random.Random) -> str:
    return "".join(lots.choice((*_BIDI, *_UNSEEN, *_WORDS)) for _ in range(lots.randrange(1, 30)))


def _towers(lots: random.Random) -> str:
    heights = (lots.choice((0, 1, 3, 100, 1_000)) for _ in range(lots.randrange(1, 6)))
    return "".join(
        "e" + "".join(chr(lots.randrange(0x300, 0x370)) for _ in range(height)) for height in heights
    )


def _words(lots: random.Random) -> str:
    return "".join(
        lots.choice(_WORDS) + lots.choice(("", " ", *_SPACES)) for _ in range(lots.randrange(1, 60))
    )


def _injection(lots: random.Random) -> str:
    return lots.choice((" ", "", "\n")).join(lots.choice(INJECTIONS) for _ in range(lots.randrange(1, 5)))


def _long_word(lots: random.Random) -> str:
    return lots.choice(("a", "ab", "ﷺ", "é", "東", "😀", "0", "=", "##", "un")) * lots.choice(
        (50, 101, 500, 5_000)
    )


def _spaces(lots: random.Random) -> str:
    return "".join(lots.choice(_SPACES) for _ in range(lots.randrange(0, 20)))


def _surrogates(lots: random.Random) -> str:
    half = chr(lots.randrange(0xD800, 0xE000))
    return lots.choice((half, f"we {half} left", f"a{half}", f"{half}{half}"))


def _mixed(lots: random.Random) -> str:
    return lots.choice(_SPACES).join(lots.choice(_KINDS[:-1])(lots)[:80] for _ in range(lots.randrange(1, 4)))


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _of_blocks,
    _of_all,
    _controls,
    _unseen,
    _towers,
    _words,
    _injection,
    _long_word,
    _spaces,
    _surrogates,
    _mixed,
)
