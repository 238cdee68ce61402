"""Shared setup: no network, checkpoints built once per run, and the order of the test files."""

import gc
import os
import signal
import sys

# Set these variables before huggingface_hub and tokenizers are imported, because they are read only once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import hypothesis
import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import bert_probe
from bert_probe.cli import lazy_commands
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from tests.helpers import families, trained
from tests.helpers.gate import PROVE, select
from tests.helpers.opening import open_minilm

# JupyterLab installs this package, whose grammar jsonschema would compile for seconds in each test process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A background process ignores SIGINT, and its child processes would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The test models are so small that additional threads only add overhead.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)

# `make test` uses the same examples in every run; `make prove` draws new ones.
hypothesis.settings.register_profile("gate", derandomize=not PROVE, database=None, deadline=None)
hypothesis.settings.load_profile("gate")

# Browser tests form two groups, each with its own browser and server: pages of the app, and everything else.
BROWSER = "tests/browser/"
WITHOUT_APP = {
    "bertviz",
    "clicks",
    "components",
    "files",
    "firefox",
    "model_view",
    "notebook",
    "shell",
    "touch",
}
BROWSER_WITHOUT_APP = tuple(f"{BROWSER}test_{name}.py" for name in sorted(WITHOUT_APP))
LONGEST = ("tests/ui/", "tests/core/", "tests/test_packaging.py")


def _group(nodeid: str) -> str | None:
    """Return the name of the group of browser tests that contains a test, or None for other tests."""
    if nodeid.startswith(BROWSER_WITHOUT_APP):
        return "browser without app"
    return "browser" if nodeid.startswith(BROWSER) else None


def _rank(item: pytest.Item) -> int:
    """Return the sort key of a test. Slow files start first, so that processes end at about the same time."""
    if group := _group(item.nodeid):
        return ("browser", "browser without app").index(group)
    return 2 if item.nodeid.startswith(LONGEST) else 3


class _BrowserGroups(LoadFileScheduling):  # type: ignore[misc]
    """Assigns each file or group of browser tests to one process, so that each server starts only once."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Keep the order of collection instead of starting with the files that have the most tests."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return _BrowserGroups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of ``make prove`` unless it runs, and start the longest files first."""
    if not PROVE:
        items[:], deselected = select(items)
        config.hook.pytest_deselected(items=deselected)
    items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, because they live as long as the process."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage after each file: models are reference cycles that are rarely collected otherwise.
    The remaining objects are shared with later files. They are frozen, so that later collections skip them.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_freezing_by_commands() -> Iterator[None]:
    """Disable `long_lived_imports` in commands: it would exempt all objects from garbage collection."""
    with patch.object(lazy_commands, "long_lived_imports", nullcontext):
        yield


@pytest.fixture(scope="session")
def minilm() -> Checkpoint:
    """Return the built-in all-MiniLM-L6-v2."""
    return open_minilm()


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a factory that maps a family to the folder of a tiny model, which is built on first use.

    Tests must not change the folder.
    """
    root = tmp_path_factory.mktemp("families")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            families.build(name, path)
        return path

    return folder


@pytest.fixture(scope="session")
def family(family_folder: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    """Return a factory that maps a family to its tiny checkpoint, opened only once."""
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            opened[name] = bert_probe.load(family_folder(name))
        return opened[name]

    return checkpoint


@pytest.fixture(scope="session")
def double_minilm() -> Checkpoint:
    """Return the built-in model in float64, for exact comparisons with formulas."""
    checkpoint = bert_probe.load(dtype="float64")
    keep_float64(checkpoint.model)
    return checkpoint


@pytest.fixture(scope="session")
def double_family(family_folder: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    """Return a factory that maps a family to its tiny float64 checkpoint, opened only once."""
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            opened[name] = bert_probe.load(family_folder(name), dtype="float64")
            keep_float64(opened[name].model)
        return opened[name]

    return checkpoint


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a factory that maps a family and a task to the folder of a tiny model with a task head.

    Each folder is built on first use. Tests must not change it.
    """
    root = tmp_path_factory.mktemp("trained")

    def folder(name: str, task: str) -> Path:
        path = root / f"{name}-{task}"
        return path if path.exists() else trained.build(name, task, path)

    return folder


@pytest.fixture(scope="session")
def trained_on(trained_folder: Callable[[str, str], Path]) -> Callable[[str, str], Checkpoint]:
    """Return a factory that maps a family and a task to a tiny checkpoint with a task head, opened once."""
    opened: dict[tuple[str, str], Checkpoint] = {}

    def checkpoint(name: str, task: str) -> Checkpoint:
        if (name, task) not in opened:
            opened[name, task] = bert_probe.load(trained_folder(name, task))
        return opened[name, task]

    return checkpoint


@pytest.fixture(scope="session")
def double_trained_on(trained_folder: Callable[[str, str], Path]) -> Callable[[str, str], Checkpoint]:
    """Return a factory that maps a family and a task to a tiny float64 checkpoint with a task head."""
    opened: dict[tuple[str, str], Checkpoint] = {}

    def checkpoint(name: str, task: str) -> Checkpoint:
        if (name, task) not in opened:
            opened[name, task] = bert_probe.load(trained_folder(name, task), dtype="float64")
            keep_float64(opened[name, task].model)
        return opened[name, task]

    return checkpoint
