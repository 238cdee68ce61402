"""Prepare and check a release; docs/releasing.md describes the complete procedure.

    .venv/bin/python scripts/release.py prepare 0.2.0     # writes version and date into three files
    .venv/bin/python scripts/release.py check 0.2.0       # fails unless the three files agree on the version

The version is `bert_probe.__version__`, from which pyproject.toml reads it. CITATION.cff and the changelog
contain the version of the last release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+")
_ASSIGNMENT = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
_UNRELEASED = "## [Unreleased]\n"


def read(name: str) -> str:
    """Return the content of a text file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def current_version() -> str:
    """Return `bert_probe.__version__` without importing the package."""
    match = _ASSIGNMENT.search(read("bert_probe/__init__.py"))
    assert match is not None
    return match[1]


def releases(changelog: str) -> list[tuple[str, str]]:
    """Return version and date of each release in the changelog, newest first."""
    return [(version, day) for version, day in _RELEASE.findall(changelog)]


def citation() -> tuple[str, str]:
    """Return version and date of the release in CITATION.cff."""
    text = read("CITATION.cff")
    (version,), (day,) = (
        re.findall(rf"^{name}: (.*)$", text, re.MULTILINE) for name in ("version", "date-released")
    )
    return version, day


def prepared(version: str, day: str) -> dict[str, str]:
    """Return the new contents of the files that state the version, by path.

    Args:
        version: version of the release.
        day: date of the release, YYYY-MM-DD.

    Raises:
        ValueError: the version is invalid or not newer, or the changelog has no unreleased changes.
    """
    changelog = read("CHANGELOG.md")
    newest = releases(changelog)[0][0]
    if not VERSION.fullmatch(version) or _numbers(version) <= _numbers(newest):
        raise ValueError(
            f"The version must be three numbers and newer than {newest}, such as 1.2.3; not {version}."
        )
    before, heading, after = changelog.partition(_UNRELEASED)
    if not heading or after.lstrip().startswith("## ["):
        raise ValueError("CHANGELOG.md lists no unreleased changes. Add them under ## [Unreleased].")
    cited = re.sub(r"^version: .*$", f"version: {version}", read("CITATION.cff"), flags=re.MULTILINE)
    return {
        "bert_probe/__init__.py": _ASSIGNMENT.sub(
            f'__version__ = "{version}"', read("bert_probe/__init__.py")
        ),
        "CHANGELOG.md": f"{before}{heading}\n## [{version}] - {day}\n{after}",
        "CITATION.cff": re.sub(r"^date-released: .*$", f"date-released: {day}", cited, flags=re.MULTILINE),
    }


def problems(version: str) -> list[str]:
    """Return a sentence for each file that does not state `version`, or lists unreleased changes."""
    changelog = read("CHANGELOG.md")
    versions = {
        "bert_probe/__init__.py": current_version(),
        "CHANGELOG.md": releases(changelog)[0][0],
        "CITATION.cff": citation()[0],
    }
    wrong = [
        f"{name} names the version {other}, not {version}."
        for name, other in versions.items()
        if other != version
    ]
    unreleased = changelog.partition(_UNRELEASED)[2].lstrip()
    if not unreleased.startswith("## ["):
        wrong.append("CHANGELOG.md lists unreleased changes.")
    return wrong


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def main(arguments: Sequence[str]) -> int:
    """Prepare or check a release, and return the exit status."""
    if len(arguments) != 2 or arguments[0] not in ("prepare", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    command, version = arguments
    if command == "check":
        wrong = problems(version)
        print("\n".join(wrong) or f"All files name the version {version}.")
        return int(bool(wrong))
    try:
        texts = prepared(version, date.today().isoformat())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for name, text in texts.items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"Changed {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
