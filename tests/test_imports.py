"""Test lazy imports by the names of loaded modules, because import times depend on the machine."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bert_probe
from bert_probe.cli.main import COMMANDS, CORPUS_COMMANDS
from tests.helpers.gate import prove_unless

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "umap"}
BROWSER_SIDE = {"streamlit", "plotly", "starlette", "uvicorn", "bertviz", "mpld3"}


def modules_after(code: str) -> set[str]:
    """Return the full names of all modules that a new interpreter has loaded after running code."""
    script = f"import json, sys\ntry:\n    {code}\nfinally:\n    sys.stderr.write(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    return set(json.loads(done.stderr))


def after_command(*arguments: str) -> set[str]:
    """Return the full names of all modules that a new interpreter has loaded after running a command."""
    return modules_after(f"from bert_probe.cli.main import main; main({list(arguments)!r})")


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


# ---------------------------------------------------------------- the package


def test_package_import_loads_no_other_modules() -> None:
    imported = modules_after("import bert_probe")
    assert not packages(imported) & (HEAVY | BROWSER_SIDE | {"click"})
    assert {name for name in imported if name.startswith("bert_probe")} == {"bert_probe"}


def test_public_name_loads_only_its_module() -> None:
    imported = modules_after("import bert_probe; bert_probe.TextError")
    assert "bert_probe.errors" in imported
    assert not packages(imported) & HEAVY


def test_public_names_are_attributes_of_modules_in_stub() -> None:
    tree = ast.parse((ROOT / "bert_probe" / "__init__.pyi").read_text(encoding="utf-8"))
    modules = {
        alias.name: f"bert_probe.{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(modules) == set(bert_probe.__all__)
    for name, module in modules.items():
        assert getattr(bert_probe, name) is getattr(import_module(module), name)


def test_dir_lists_public_names_before_use() -> None:
    code = "import bert_probe; assert set(bert_probe.__all__) <= set(dir(bert_probe))"
    assert "bert_probe.model" not in modules_after(code)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No bert_probe attribute Attenton"):
        bert_probe.Attenton  # type: ignore[attr-defined]  # noqa: B018


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("arguments", prove_unless([["--help"]], [["--help"], ["-h"], [], ["diff"]]))
def test_command_list_imports_no_command(arguments: list[str]) -> None:
    imported = after_command(*arguments)
    assert not packages(imported) & (HEAVY | BROWSER_SIDE)
    assert {name for name in imported if name.startswith("bert_probe.")} == {
        "bert_probe.cli",
        "bert_probe.cli.lazy_commands",
        "bert_probe.cli.main",
        "bert_probe.core",
        "bert_probe.core.extras",
        "bert_probe.errors",
        "bert_probe.model",
        "bert_probe.model.progress",
        "bert_probe.runtime",
        "bert_probe.runtime.terminal",
    }


@pytest.mark.parametrize(
    ("name", "module", "line"),
    [(name, *entry) for name, entry in (*COMMANDS.items(), *CORPUS_COMMANDS.items())],
)
def test_command_list_has_short_help_of_commands(name: str, module: str, line: str) -> None:
    command = getattr(import_module(f"bert_probe.cli.{module}"), name.replace("-", "_"))
    assert command.name == name
    assert command.get_short_help_str(1000) == line


def test_all_commands_are_listed() -> None:
    import click

    defined = set()
    for path in (ROOT / "bert_probe" / "cli").glob("*.py"):
        if path.stem not in ("__init__", "lazy_commands", "main"):
            members = vars(import_module(f"bert_probe.cli.{path.stem}")).values()
            defined |= {member.name for member in members if isinstance(member, click.Command)}
    assert defined == {*COMMANDS, *CORPUS_COMMANDS}


@pytest.mark.prove
def test_only_app_command_imports_user_interface() -> None:
    every = {module for module, _ in (*COMMANDS.values(), *CORPUS_COMMANDS.values())}
    modules = sorted(every - {"app"})
    imported = packages(
        modules_after(f"import {', '.join(f'bert_probe.cli.{module}' for module in modules)}")
    )
    assert "torch" in imported
    assert not imported & (BROWSER_SIDE | {"sklearn", "umap"})


def test_tokens_command_does_not_import_torch() -> None:
    imported = after_command("tokens", "A boat.", "--pair", "Another one.")
    assert "tokenizers" in imported
    assert not packages(imported) & (BROWSER_SIDE | {"torch", "scipy", "sklearn", "umap"})


# ---------------------------------------------------------------- the app


def test_server_and_workbench_do_not_import_torch() -> None:
    names = "blocks, drafts, view_files, workbench"
    code = (
        f"from bert_probe.ui import {names}; from bert_probe.server import asgi, start; asgi.app_arguments()"
    )
    imported = modules_after(code)
    assert "streamlit" in packages(imported)
    assert not packages(imported) & {"torch", "transformers", "pandas", "scipy", "bertviz"}
