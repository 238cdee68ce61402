"""Test the structure of the project: allowed imports, content of pages, pinned requirements, documents."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import bert_probe
from tests.helpers.source import globals_read, imported, page_faults, possible_imports

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "bert_probe").rglob("*.py"))
PAGES = sorted((ROOT / "pages").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SHIPPED = [*PACKAGE, *PAGES, ROOT / "app.py"]

FLOORS = {
    "errors": 0,
    "model": 1,
    "text": 2,
    "core": 3,
    "analyses": 4,
    "training": 5,
    "runtime": 5,
    "corpus": 5,
    "conversion": 6,
    "views": 6,
    "reports": 7,
    "api": 7,
    "notebook": 8,
    "cli": 8,
    "bertviz": 9,
    "server": 8,
    "ui": 9,
    "pages": 10,
    "app": 10,
}
"""Package → its level; a package imports only from packages of lower levels."""

DOORS = {("cli.app", "server")}
"""Allowed imports from a higher level: the command that starts the app imports the server when it runs."""

FINDING = {
    "",
    "api.registry",
    "analyses.attribution.methods",
    "analyses.highlights.types",
    "analyses.attention.measures",
    "cli.lazy_commands",
}
"""Modules that may import other modules by a computed name, because they find analyses by name or file."""

INTERFACES = {"streamlit", "plotly", "bertviz", "uvicorn", "mpld3", "xstatic"}


def short_name(path: Path) -> str:
    """Return the dotted name relative to the package or the root, such as "model.trace" or "pages.steps"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part not in ("bert_probe", "__init__"))


def package_of(name: str) -> str | None:
    """Return the package that contains a dotted name without ``bert_probe.``; None for the root package."""
    first = name.partition(".")[0]
    return first if first in FLOORS else None


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@cache
def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def all_imports(path: Path) -> list[tuple[str, bool]]:
    """Return the full name of each import, and whether it is only for type checking."""
    return [*imported(source(path))]


def imports(path: Path) -> list[str]:
    return [name for name, _ in all_imports(path)]


def upward_imports(importer: str, names: list[str]) -> list[str]:
    """Return a module's imports that do not come from a lower-level package."""
    own = package_of(importer)
    faults = []
    for name in names:
        package, _, inner = name.partition(".")
        other = (
            package_of(inner) if package == "bert_probe" else package if package in ("pages", "app") else None
        )
        if own is None or other is None or own == other or (importer, other) in DOORS:
            continue
        if FLOORS[other] >= FLOORS[own]:
            faults.append(f"{importer} imports {name}")
    return faults


def test_package_and_page_modules_are_found() -> None:
    rooms = {package_of(short_name(path)) for path in SHIPPED}
    assert rooms == {*FLOORS, None}
    assert len(PAGES) >= 10
    assert "torch.Tensor" not in imports(ROOT / "bert_probe" / "errors.py")
    assert "torch" in imports(ROOT / "bert_probe" / "model" / "loading.py")


# ---------------------------------------------------------------- package levels


def test_imports_follow_layer_order() -> None:
    assert [line for path in SHIPPED for line in upward_imports(short_name(path), imports(path))] == []


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("model.trace", "from bert_probe.analyses.attention.attention import Attention"),
        ("model.trace", "def f():\n    from bert_probe.text import words"),
        ("text.words", "import bert_probe.core.frames"),
        ("core.files", "from bert_probe.analyses import attention"),
        ("analyses.attention.attention", "from bert_probe.runtime.cache import Cache"),
        ("runtime.jobs", "from bert_probe.ui import state"),
        ("cli.main", "from bert_probe.server.start import start"),
        ("api.body", "from bert_probe.ui import state"),
        ("views.head_view", "from bert_probe.ui import state"),
        ("server.start", "from bert_probe.cli import options"),
        ("server.start", "import importlib\nimportlib.import_module('bert_probe.cli.main')"),
        ("ui.main", "import pages.attention"),
        (
            "errors",
            "if TYPE_CHECKING:\n    from bert_probe.model import trace",
        ),
    ],
)
def test_import_of_higher_layer_is_reported(importer: str, line: str) -> None:
    assert len(upward_imports(importer, [name for name, _ in imported(line)])) == 1


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("cli.app", "from bert_probe.server.start import start"),
        ("pages.steps", "from bert_probe.ui import state"),
        ("analyses.attention.steps", "from bert_probe.analyses.attention.attention import Attention"),
        ("ui.state", "import streamlit, bert_probe"),
    ],
)
def test_import_of_lower_layer_is_allowed(importer: str, line: str) -> None:
    assert upward_imports(importer, [name for name, _ in imported(line)]) == []


def find_cycle(edges: dict[str, set[str]]) -> set[str]:
    """Return the modules that form an import cycle or are on a path to one; empty if there is no cycle."""
    left = dict(edges)
    while left:
        free = {name for name, needed in left.items() if not needed & left.keys()}
        if not free:
            return set(left)
        left = {name: needed for name, needed in left.items() if name not in free}
    return set()


def test_imports_have_no_cycles() -> None:
    modules = {short_name(path) for path in PACKAGE} - {"", "__main__"}
    edges = {}
    for path in PACKAGE:
        # Imports for type checking are not executed at run time.
        needed = {
            name.removeprefix("bert_probe.")
            for name, for_types in all_imports(path)
            if not for_types and name.startswith("bert_probe.")
        }
        # `from a.b import c` names either the module a.b.c or a name within a.b.
        expected = {name if name in modules else name.rpartition(".")[0] for name in needed} & modules
        edges[short_name(path)] = expected - {short_name(path)}
    assert find_cycle({name: needed for name, needed in edges.items() if name in modules}) == set()


def test_import_cycle_is_reported() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"a", "b", "c"}


def test_only_server_and_ui_import_streamlit_and_plotly() -> None:
    rooms = {"server", "ui"}
    assert importers(INTERFACES, rooms) == []
    assert importers({"starlette"}, {*rooms, "api"}) == []


def importers(packages: set[str], allowed: set[str]) -> list[str]:
    """Return the files outside the allowed packages that import one of the given libraries."""
    outside = [path for path in PACKAGE if package_of(short_name(path)) not in allowed]
    return names([path for path in outside if {name.partition(".")[0] for name in imports(path)} & packages])


def test_only_registries_import_computed_names() -> None:
    computing_modules = [path for path in PACKAGE if short_name(path) not in FINDING]
    assert names([path for path in computing_modules if "a computed name" in imports(path)]) == []


def test_only_entry_point_imports_command_line() -> None:
    outside = [path for path in SHIPPED if package_of(short_name(path)) != "cli"]
    users = [path for path in outside if any(name.startswith("bert_probe.cli") for name in imports(path))]
    assert names(users) == ["bert_probe/__main__.py"]


def test_private_names_are_not_imported() -> None:
    private = re.compile(r"^bert_probe\..*\._[a-z]|^bert_probe\._[a-z]")
    assert names([path for path in SHIPPED if any(map(private.search, imports(path)))]) == []


def test_test_modules_are_not_imported() -> None:
    test_module = re.compile(r"^tests\.(.*\.)?(test_|conftest)")
    assert (
        names([path for path in TESTS if any(map(test_module.search, possible_imports(source(path))))]) == []
    )


@pytest.mark.parametrize(
    "lines",
    [
        "import a.b, c",
        "def f():\n    import a.b as d, c  # reason",
        "from a import b\nfrom c import d",
        "from a import (\n    b,  # reason\n    c,\n)",
        "from a import (\n    b,  # reason (with parentheses)\n    c,\n)",
        "if x:\n\tfrom a import b\nimport of_words",
    ],
)
def test_possible_imports_include_all_imports(lines: str) -> None:
    assert possible_imports(lines) == {name for name, _ in imported(lines)}


# ---------------------------------------------------------------- pages


RENDERERS = [
    path for path in PACKAGE if short_name(path).startswith("ui.") and "def render()" in source(path)
]
MIXED = {
    "ui.attention",
    "ui.changes",
    "ui.compare",
    "ui.context",
    "ui.corpus",
    "ui.evaluate",
    "ui.heads",
    "ui.overview",
    "ui.parameters",
    "ui.positions",
    "ui.probes",
    "ui.report",
    "ui.sentences",
    "ui.sizes",
    "ui.tokens",
    "ui.train",
    "ui.vocabulary",
}
"""Modules with more than one responsibility: they render a page and contain its figures, summary or state."""


def test_pages_are_short() -> None:
    assert {path.name: lines for path in PAGES if (lines := source(path).count("\n")) > 12} == {}
    assert len(RENDERERS) == len(PAGES)


def test_pages_contain_no_computation() -> None:
    pages = [*PAGES, *(path for path in RENDERERS if short_name(path) not in MIXED)]
    assert {short_name(path): faults for path in pages if (faults := page_faults(source(path)))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "found.queries @ found.keys",
        "import numpy as np\nfigure(1)",
        "from numpy import exp",
        "import math",
        "from functools import reduce",
        "from scipy.special import softmax",
        "from bert_probe.cli.main import main",
        "from bert_probe.ui.state import _address",
        "np.exp(found.scores)",
        "trace.np.exp(trace.q)",
        "found.weights * 100",
        "found.weights / found.sums",
        "1 - found.cosines",
        "a.weights - b.weights",
        "-found.weights",
        "~found.masked",
        "found.low | found.high",
        "found.weights ** 2",
        "total += weight",
        "total *= 2",
        "found.weights.sum()",
        "found.weights.mean(axis=0)",
        "frame.sort_values('weight')",
        "frame.groupby('layer').agg(list)",
        "found.weights.argmax()",
        "sum(found.shares)",
        "max(found.weights)",
        "max(found.weights.ravel(), default=0)",
        "abs(found.difference)",
        "round(found.weight, 2)",
        "pow(found.weight, 2)",
        "pd.concat(frames)",
        "eval('found.weights')",
        "__import__('numpy')",
        "len(found.tokens) / 2",
    ],
)
def test_computation_in_page_is_reported(line: str) -> None:
    assert page_faults(line)


@pytest.mark.parametrize(
    "line",
    [
        "from bert_probe.analyses.attention.attention import Attention\nfrom bert_probe.ui import blocks",
        "import streamlit as st\nst.title('Steps')",
        "f'Layer {layer + 1}, head {head + 1}'",
        "place = int(chosen) - 1",
        "height = min(38 + 35 * len(frame), 640)",
        "shown = names[:20] + [f'{len(names) - 20} more']",
        "text = '  ' * depth + (name + ': ' if name else '')",
        "rows += ['others'] if more else []",
        "def draw(cell: Cell | None) -> int | None: ...",
        "settings = {'a': 1} | more",
        "pd.DataFrame({'token': names}, index=pd.Index(names))",
        "index = -1",
        "if not chosen and len(names) > 20: pass",
    ],
)
def test_counting_joining_and_drawing_are_allowed(line: str) -> None:
    assert page_faults(line) == []


def test_page_functions_read_no_globals() -> None:
    pages = [*PAGES, *(path for path in RENDERERS if short_name(path) not in MIXED)]
    assert {short_name(path): read for path in pages if (read := globals_read(source(path)))} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    return request\nrequest = 1", ["f reads request"]),
        ("def f():\n    return [request for _ in 'ab']\nrequest = 1", ["f reads request"]),
        ("with open() as request:\n    pass\ndef f():\n    return lambda: request", ["f reads request"]),
        ("def f(request):\n    return request\nrequest = 1\nf(request)", []),
        ("def f():\n    request = 2\n    return request\nrequest = 1", []),
        ("PAIRS = 50\nimport a\ndef f():\n    return PAIRS, a, f", []),
        ("names = 'ab'\nshown = [name for name in names]\ntell(lambda: names)", []),
    ],
)
def test_globals_read_by_function_are_reported(source: str, expected: list[str]) -> None:
    assert globals_read(source) == expected


# ---------------------------------------------------------------- packages


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_all_requirements_are_pinned(name: str) -> None:
    lines = [line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    requirement_lines = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert len(requirement_lines) > 5
    for line in requirement_lines:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?==[\w.!+]+( ?;.+)?", line), line


def test_all_imports_are_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    required = {re.split(r"[^\w.-]", line)[0].lower() for line in [*project["dependencies"], *extras]}
    called = {name.replace("-", "_") for name in required} | {
        "sklearn",
        "umap",
        "xstatic",
        "quickjs",
        "faiss",
        "pil",
        "re2",
        "bert_probe",
    }
    for path in SHIPPED:
        packages = {name.partition(".")[0].lower() for name in imports(path)} - {"a computed name"}
        assert not packages - called - sys.stdlib_module_names, path.name


# ---------------------------------------------------------------- public API and file sizes


def test_public_names_exist_and_are_documented() -> None:
    assert len(set(bert_probe.__all__)) == len(bert_probe.__all__)
    for name in bert_probe.__all__:
        public_object = getattr(bert_probe, name)
        assert (inspect.getdoc(public_object) or "").strip(), f"{name} has no docstring"
        assert public_object.__module__.startswith("bert_probe."), f"{name} is not ours"
        own = public_object.__doc__ or ""
        assert not own.startswith(f"{name}("), f"{name} has only the docstring that dataclass makes"


def test_files_have_at_most_600_lines() -> None:
    assert names([path for path in SHIPPED if len(source(path).splitlines()) > 600]) == []


@pytest.mark.prove
def test_docstring_examples_run() -> None:
    attempted = 0
    for module in pkgutil.walk_packages(bert_probe.__path__, "bert_probe."):
        if not module.name.startswith("bert_probe.ui") and module.name != "bert_probe.__main__":
            result = doctest.testmod(importlib.import_module(module.name))
            assert not result.failed, module.name
            attempted += result.attempted
    result = doctest.testmod(bert_probe)
    assert not result.failed
    assert attempted + result.attempted >= 3
