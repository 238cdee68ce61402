"""The shape of the project: who may import whom, what is pinned, what is documented."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import bert_probe

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bert_probe"
CORE = sorted(path for path in PACKAGE.glob("*.py"))
UI = sorted((PACKAGE / "ui").rglob("*.py"))
PAGES = sorted((ROOT / "pages").glob("*.py"))

USER_INTERFACE = {
    "streamlit",
    "plotly",
    "bertviz",
    "starlette",
    "uvicorn",
    "mpld3",
    "xstatic",
    "bert_probe.web",
}
NEEDS_TORCH = {
    "trace",
    "checks",
    "capture",
    "forward",
    "loading",
    "checkpoint",
    "parameters",
    "anatomy",
    "ablation",
    "heads",
    "minimal",
    "pooling",
}


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, anywhere in it: ``from a.b import c`` gives ``a.b.c``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the direction"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "__import__",
            "importlib.import_module",
        ):
            yield "a computed name" if not isinstance(node.args[0], ast.Constant) else str(node.args[0].value)


def uses(path: Path, *packages: str) -> set[str]:
    """Those of the packages that a file imports, or something within them."""
    found = set(imports(path))
    return {name for name in packages if any(one == name or one.startswith(f"{name}.") for one in found)}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_there_is_something_to_look_at() -> None:
    assert len(CORE) >= 15
    assert len(UI) >= 5
    assert len(PAGES) == 10
    assert uses(PACKAGE / "loading.py", "torch", "transformers") == {"torch", "transformers"}


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_what_computes_knows_no_user_interface(path: Path) -> None:
    assert not uses(path, *USER_INTERFACE)
    assert "a computed name" not in set(imports(path))


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_torch_stays_where_the_model_is(path: Path) -> None:
    needed = uses(path, "torch", "transformers")
    assert not needed or path.stem in NEEDS_TORCH, f"{path.name} imports {needed}"


def test_streamlit_is_only_in_the_user_interface() -> None:
    allowed = {*UI, *PAGES, ROOT / "app.py"}
    others = [path for path in ROOT.glob("*.py") if path not in allowed]
    others += [path for path in PACKAGE.rglob("*.py") if path not in allowed]
    assert not [path.name for path in others if uses(path, "streamlit")]
    assert any(uses(path, "streamlit") for path in allowed)


@pytest.mark.parametrize("path", PAGES, ids=names(PAGES))
def test_a_page_uses_the_public_names_and_computes_nothing(path: Path) -> None:
    plain = {"__future__", "collections", "contextlib", "dataclasses", "functools", "pathlib", "typing"}
    for name in imports(path):
        package = name.partition(".")[0]
        if name == "bert_probe" or name.startswith("bert_probe.web"):
            continue
        if package == "bert_probe":
            inner = name.split(".")[1]
            public = inner in bert_probe.__all__ or _is_module(inner)
            assert public, name
        else:
            assert package in {"pandas", "numpy", "streamlit"} | plain, name


def _is_module(name: str) -> bool:
    return (PACKAGE / f"{name}.py").exists()


def test_pages_and_the_user_interface_reach_into_no_private_name() -> None:
    for path in (*UI, *PAGES, ROOT / "app.py"):
        for name in imports(path):
            if name.startswith("bert_probe."):
                assert not name.rpartition(".")[2].startswith("_"), f"{path.name} imports {name}"


def test_the_command_line_is_imported_by_nothing_but_its_entry() -> None:
    importers = [path for path in (*CORE, *UI, *PAGES) if uses(path, "bert_probe.cli")]
    assert names(importers) == ["bert_probe/__main__.py"]


def test_imports_within_the_core_make_no_circle() -> None:
    modules = {path.stem for path in CORE} - {"__init__", "__main__"}
    edges = {
        path.stem: {name for name in modules if uses(path, f"bert_probe.{name}")}
        for path in CORE
        if path.stem in modules
    }
    while edges:
        free = {name for name, needed in edges.items() if not needed & edges.keys()}
        assert free, f"{sorted(edges)} import each other"
        edges = {name: needed for name, needed in edges.items() if name not in free}


def test_the_public_surface_exists_and_is_documented() -> None:
    assert len(set(bert_probe.__all__)) == len(bert_probe.__all__)
    for name in bert_probe.__all__:
        thing = getattr(bert_probe, name)
        assert (inspect.getdoc(thing) or "").strip(), f"{name} has no docstring"
        assert thing.__module__.startswith("bert_probe."), f"{name} is not ours"
        own = thing.__doc__ or ""
        assert not own.startswith(f"{name}("), f"{name} has only the docstring that dataclass makes"


def test_every_public_name_of_the_package_is_in_all() -> None:
    shown = {
        name
        for name, thing in vars(bert_probe).items()
        if not name.startswith("_") and not inspect.ismodule(thing)
    }
    assert shown == set(bert_probe.__all__)


@pytest.mark.parametrize("path", [*CORE, *UI, *PAGES], ids=names([*CORE, *UI, *PAGES]))
def test_a_file_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450


def test_examples_in_docstrings_run() -> None:
    counts = {}
    for module in pkgutil.iter_modules([str(PACKAGE)], "bert_probe."):
        if not module.ispkg and module.name != "bert_probe.__main__":
            result = doctest.testmod(importlib.import_module(module.name))
            assert not result.failed, module.name
            counts[module.name] = result.attempted
    result = doctest.testmod(bert_probe)
    assert (result.failed, result.attempted) == (0, 3)
