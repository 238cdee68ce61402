"""Test vocabulary search, including hostile regular expressions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bert_probe.errors import SelectionError
from bert_probe.text import pieces
from bert_probe.text.pieces import BoundaryMarks, VocabularyTokens, read

NAMES = ("Ġriver", "driver", "ĠRiver", "ing", "Ġ2024", "Ġ" + "a" * 60 + "b")
_MARKS = BoundaryMarks("", "Ġ", True)
PIECES = VocabularyTokens(
    _MARKS,
    NAMES,
    tuple(read(name, _MARKS)[0] for name in NAMES),
    ("word",) * len(NAMES),
    ("Latin",) * len(NAMES),
    {name: number for number, name in enumerate(NAMES)},
)


def find_tokens(search: str, match: str, case: bool = False) -> list[str]:
    return [NAMES[token_id] for token_id in pieces.matching(PIECES, search, match, case)]


@pytest.mark.parametrize(
    ("search", "match", "case", "names"),
    [
        ("", "exact", False, list(NAMES)),
        ("river", "exact", False, ["Ġriver", "ĠRiver"]),
        ("river", "exact", True, ["Ġriver"]),
        ("Ġriver", "exact", True, ["Ġriver"]),
        ("RIV", "contains", False, ["Ġriver", "driver", "ĠRiver"]),
        ("riv", "prefix", False, ["Ġriver", "ĠRiver"]),
        ("Ġ2", "prefix", False, ["Ġ2024"]),
        (r"^\p{Lu}", "regex", True, ["ĠRiver"]),
        ("^Ġ[^a]", "regex", False, ["Ġriver", "ĠRiver", "Ġ2024"]),
        (r"^\d+$", "regex", False, ["Ġ2024"]),
        ("^d?river$", "regex", False, ["Ġriver", "driver", "ĠRiver"]),
        (r"^\w+\Z", "regex", False, [*NAMES]),
        (r"\W", "regex", False, []),
        (r"^[^\D]+$", "regex", False, ["Ġ2024"]),
        ("^RIVER$", "regex", False, ["Ġriver", "ĠRiver"]),
        ("^RIVER$", "regex", True, []),
        (r"^\Q2024\E$", "regex", False, ["Ġ2024"]),
        (".", "contains", False, []),
    ],
)
def test_search_returns_expected_tokens(search: str, match: str, case: bool, names: list[str]) -> None:
    assert sorted(find_tokens(search, match, case)) == sorted(names)


@pytest.mark.parametrize(
    ("expression", "text", "matches"),
    [
        (r"^\w+$", "жизнь", True),
        (r"^[\w-]+$", "東-京", True),
        (r"^\d$", "٣", True),
        (r"^\D$", "é", True),
        (r"^[\D]$", "٣", False),
        (r"\s", "a\u3000b", True),
        (r"^[]\d]+$", "]٣", True),
        (r"^[[:alpha:]\d]+$", "a٣", True),
        (r"\\w", "\\w", True),
        (r"\Q\w\E", "\\w", True),
        (r"\Q\w\E", "w", False),
        ("É", "é", True),
        (r"^\p{Greek}+$", "λόγος", True),
        ("", "x", True),
    ],
)
def test_perl_classes_and_case_cover_unicode(expression: str, text: str, matches: bool) -> None:
    vocabulary = VocabularyTokens(
        BoundaryMarks("##", "", False), (text,), (text,), ("word",), ("none",), {text: 0}
    )
    assert pieces.matching(vocabulary, expression, "regex", False) == ([0] if matches else [])


HOSTILE = (
    ".{99999999}",
    "((a{1000}){1000}){1000}",
    "(((a{100}){100}){100}){100}",
    "(a*)*b",
    "(a+)+$",
    "(a|aa)+$",
    "(.*a){30}c",
    "(a?){50}a{50}c",
    "(?:a{1,40}){1,40}c",
    "(?:.{0,999})x",
    r"\p{L}{1000}",
    r"(\w{1000}|\W{1000}){1000}",
    r"[\w]{1000}" * 18,
    r"\p{Han}\p{L}\p{Lu}\p{Cyrillic}" * 7,
    r"(?i)" + r"\pL" * 65,
    "|".join("abcdefghij" * 10),
    "(" * 100 + ")" * 100,
    "(a" * 66 + ")*" * 33,
    "[" + "".join(chr(0x4E00 + 3 * number) for number in range(198)) + "]",
    "(?=a)b",
    "(?<=a{1000})b",
    r"(a)\1",
    r"(?P<n>a+)(?P=n)+",
    "(?R)",
    "(?>a+)b",
    "[[:alpha:]" * 20,
    "\ud800",
    "\x00" * 200,
    "a" * 1_000_000,
    "(a*)*" * 200_000,
)


def test_hostile_expressions_are_bounded_in_time_and_memory() -> None:
    """Run all expressions in a process limited to 512 MB more than after its imports."""
    program = f"""
import resource, time
from bert_probe.errors import SelectionError
from bert_probe.text import pieces as search
from bert_probe.text.pieces import BoundaryMarks, VocabularyTokens

with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize() + 2**29
resource.setrlimit(resource.RLIMIT_AS, (size, size))
names = ("a" * 100, "ab" * 50, "a" * 60 + "b", "é" * 100, "東" * 100) * 20
marks = BoundaryMarks("##", "", False)
pieces = VocabularyTokens(marks, names, names, ("word",) * 100, ("none",) * 100, {{}})
search.SECONDS = 0.1
slowest = 0.0
for expression in {HOSTILE!r}:
    start = time.process_time()
    try:
        search.matching(pieces, expression, "regex", False)
    except SelectionError as error:
        assert len(str(error)) < 400, str(error)
    slowest = max(slowest, time.process_time() - start)
print(slowest)
"""
    ended = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-1000:]
    assert ended.stderr == ""
    assert float(ended.stdout) < 2


def test_slow_expression_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SECONDS", 0.0)
    with pytest.raises(SelectionError, match=r"takes more than 0 s for 6 tokens\. Use"):
        find_tokens("river", "regex")


def test_overlong_token_is_refused_for_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MAX_TOKEN_LENGTH", 60)
    with pytest.raises(SelectionError, match=r"has a token of 61 characters; .* at most 60\. Search"):
        find_tokens("river", "regex")
    assert find_tokens("river", "contains")


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("(", "Invalid regular expression: missing ): (. The syntax is that of RE2"),
        ("*a", "Invalid regular expression: no argument for repetition operator: *."),
        (".{99999999}", "Invalid regular expression: invalid repetition size: {99999999}."),
        (r"\p{L}{1000}", "Invalid regular expression: pattern too large - compile failed."),
        (r"\p{Nonsense}", r"Invalid regular expression: invalid character class range: \p{Nonsense}."),
        (r"(a)\1", r"Invalid regular expression: invalid escape sequence: \1."),
        (r"[^\W\d]", r"Invalid regular expression: \W is not allowed within [ ]. Use \W outside, or [^\w]."),
        ("a" * 201, "The search text has 201 characters, but at most 200 are allowed."),
    ],
)
def test_invalid_expression_raises_selection_error(search: str, sentence: str) -> None:
    with pytest.raises(SelectionError) as caught:
        pieces.check(search, "regex")
    assert str(caught.value).startswith(sentence)
