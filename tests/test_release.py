"""Test the version, the files of a release, and the workflows that publish it."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import bert_probe
from tests.helpers.scripts import load_script

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
release = load_script("release")


def test_version_comes_from_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "bert_probe.__version__"}
    assert release.current_version() == bert_probe.__version__


def test_changelog_lists_releases_from_the_newest_and_citation_names_the_last() -> None:
    releases = release.releases(release.read("CHANGELOG.md"))
    days = [date.fromisoformat(day) for _, day in releases]
    assert days == sorted(days, reverse=True)
    assert release.citation() == releases[0]
    assert yaml.safe_load(release.read("CITATION.cff"))["cff-version"] == "1.2.0"
    is_released = bert_probe.__version__ == releases[0][0]
    assert is_released or bert_probe.__version__.endswith(".dev0")


def test_a_prepared_release_passes_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = release.prepared("99.0.0", "2099-01-31")
    before = release.problems("99.0.0")
    assert len(before) == 4
    monkeypatch.setattr(release, "read", texts.__getitem__)
    assert release.problems("99.0.0") == []
    assert release.citation() == ("99.0.0", "2099-01-31")
    assert release.releases(texts["CHANGELOG.md"])[0] == ("99.0.0", "2099-01-31")
    with pytest.raises(ValueError, match="no unreleased changes"):
        release.prepared("99.0.1", "2099-02-01")


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "1.2", "v1.2.3", "1.2.3.dev0", ""])
def test_an_invalid_version_is_refused(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["prepare", version]) == 1
    assert "newer than" in capsys.readouterr().err


def _workflow(path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_permissions_and_run_what_exists(path: Path) -> None:
    workflow = _workflow(path)
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"]) for step in steps if "uses" in step)
    commands = [step["run"] for step in steps if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in commands:
        # Other tests cover the command of the site.
        if command.startswith("make ") and command != "make site":
            assert command.removeprefix("make ") in targets
        for script in re.findall(r"(?:\.ci|scripts)/\S+", command):
            assert (ROOT / script).is_file()
    assert "secrets." not in path.read_text(encoding="utf-8"), "publishing needs no password"


def test_uploading_needs_an_identity_and_tests() -> None:
    jobs = _workflow(ROOT / ".github" / "workflows" / "publish.yml")["jobs"]
    assert jobs["upload"]["permissions"] == {"id-token": "write"}
    assert jobs["upload"]["needs"] == "build"
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert commands.index(".ci/run") < commands.index("make dist")
    assert any(command.startswith(".venv/bin/python scripts/release.py check") for command in commands)
