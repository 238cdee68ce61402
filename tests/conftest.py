"""Set-up shared by all tests: no network, and checkpoints built once a run."""

import os
import signal

# Before anything imports huggingface_hub, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import families, trained
from tests.helpers.raw import keep_doubles

# A run in the background is started with Ctrl+C ignored, and so would be all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A second thread only waits for the first in models this small, the more so on a busy machine.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> Checkpoint:
    """The built-in all-MiniLM-L6-v2."""
    return bert_probe.load()


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a family → folder with a tiny model of it, built on first use. Tests must not change it."""
    root = tmp_path_factory.mktemp("families")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            families.build(name, path)
        return path

    return folder


@pytest.fixture(scope="session")
def family(family_folder: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    """Name of a family → its tiny checkpoint, opened once."""
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            opened[name] = bert_probe.load(family_folder(name))
        return opened[name]

    return checkpoint


@pytest.fixture(scope="session")
def double_minilm() -> Checkpoint:
    """The built-in model in float64, in which logic is proven."""
    checkpoint = bert_probe.load(dtype="float64")
    keep_doubles(checkpoint.model)
    return checkpoint


@pytest.fixture(scope="session")
def double_family(family_folder: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    """Name of a family → its tiny checkpoint in float64, in which logic is proven; opened once."""
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            opened[name] = bert_probe.load(family_folder(name), dtype="float64")
            keep_doubles(opened[name].model)
        return opened[name]

    return checkpoint


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Name of a family, task → folder with a tiny model with a head, built on first use. Tests must not
    change it."""
    root = tmp_path_factory.mktemp("trained")

    def folder(name: str, task: str) -> Path:
        path = root / f"{name}-{task}"
        return path if path.exists() else trained.build(name, task, path)

    return folder


@pytest.fixture(scope="session")
def trained_on(trained_folder: Callable[[str, str], Path]) -> Callable[[str, str], Checkpoint]:
    """Name of a family, task → its tiny checkpoint with a head, opened once."""
    opened: dict[tuple[str, str], Checkpoint] = {}

    def checkpoint(name: str, task: str) -> Checkpoint:
        if (name, task) not in opened:
            opened[name, task] = bert_probe.load(trained_folder(name, task))
        return opened[name, task]

    return checkpoint


@pytest.fixture(scope="session")
def double_trained_on(trained_folder: Callable[[str, str], Path]) -> Callable[[str, str], Checkpoint]:
    """Name of a family, task → its tiny checkpoint with a head in float64; opened once."""
    opened: dict[tuple[str, str], Checkpoint] = {}

    def checkpoint(name: str, task: str) -> Checkpoint:
        if (name, task) not in opened:
            opened[name, task] = bert_probe.load(trained_folder(name, task), dtype="float64")
            keep_doubles(opened[name, task].model)
        return opened[name, task]

    return checkpoint
