"""Read sentence-transformers' Router (formerly Asym), which has separate modules for queries and documents.

A text is encoded for a task, such as "query" or "document". The task selects a route, which is a list of
modules.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_probe.errors import ArchitectureError, CheckpointError, UnavailableError
from bert_probe.model.sources import Source, has_file, read_json

REMEDY = "Use the pooling mean, cls, pooler or max."
AGAIN = "Download the model again."
MODULES_FILE, MODEL_FILE = "modules.json", "config_sentence_transformers.json"
COLBERT_ARCHITECTURE = "HF_ColBERT"
"""Architecture name in the config.json of original ColBERT checkpoints."""
ROUTERS = ("Router", "Asym")

MAX_MODULES = 32
"""Maximum number of modules and of routes, because each module is loaded and runs for each text."""
_MAX_KEY = 200

ModuleEntry = tuple[str, Path]
"""The class name and the folder of a module."""

_TEXT = "text"


@dataclass(frozen=True)
class Router:
    """The routes of a Router module.

    Attributes:
        routes: modules of each route, by route name.
        default: the route for a text without a task; None if a task is required.
        mappings: route name by (task, modality); None matches any task or modality.
    """

    routes: Mapping[str, tuple[ModuleEntry, ...]]
    default: str | None
    mappings: Mapping[tuple[Any, Any], str]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the names of the tasks that select a route."""
        mapped = [task for task, _ in self.mappings if isinstance(task, str)]
        return tuple(dict.fromkeys([*mapped, *self.routes]))

    def modules(self, task: str | None) -> tuple[ModuleEntry, ...]:
        """Return the modules that encode a text for a task.

        Raises:
            UnavailableError: no route is defined for the task, or for a text without a task.
        """
        keys = ((task, _TEXT), (task, None), (None, _TEXT), (None, None))
        mapped = next((self.mappings[key] for key in keys if key in self.mappings), None)
        by_name = next((name for name in (task, _TEXT) if name in self.routes), None)
        route = mapped or by_name or (self.default if task is None else None)
        if route is None:
            text = "a text without a task" if task is None else f"the task {task}"
            raise UnavailableError(
                f"The Router has no route for {text}. Choose one of the prompts {', '.join(self.tasks)}."
            )
        return self.routes[route]


def is_late_interaction(options: Mapping[str, Any]) -> bool:
    """Return whether a `MODEL_FILE` describes a sentence-transformers or PyLate late-interaction model.

    Early versions of PyLate do not write a model type.
    """
    return options.get("model_type") in ("MultiVectorEncoder", "ColBERT") or bool(
        {"query_prefix", "document_prefix"} & options.keys()
    )


def read_modules(folder: Path) -> list[ModuleEntry]:
    """Return the class name and folder of each module that a checkpoint's modules.json lists.

    Raises:
        CheckpointError: the file is broken, repeats a name, or refers to a path outside its folder.
    """
    entries = read_json(folder / MODULES_FILE)
    if not isinstance(entries, list):
        raise CheckpointError(f"{MODULES_FILE} must contain a JSON list. {AGAIN}")
    try:
        modules = [(str(entry["type"]), folder / str(entry["path"])) for entry in entries]
        names = [str(entry["name"]) for entry in entries if "name" in entry]
    except (TypeError, KeyError):
        raise CheckpointError(f"{MODULES_FILE} cannot be read. {AGAIN}") from None
    _check_count(len(modules), MODULES_FILE)
    # sentence-transformers replaces a module by a later module with the same name.
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise CheckpointError(
            f"{MODULES_FILE} lists the module name {duplicate[:100]!r} more than once. {AGAIN}"
        )
    _check_inside(folder, modules, MODULES_FILE)
    return modules


def routers(modules: Sequence[ModuleEntry]) -> list[Router]:
    """Read all Router modules in a list of modules."""
    return [_read(path) for name, path in modules if is_router(name)]


def select_route(modules: Sequence[ModuleEntry], task: str | None) -> list[ModuleEntry]:
    """Return the modules that encode a text for a task; the modules of the route replace each Router.

    Raises:
        UnavailableError: a Router has no route for the task, or is nested in another Router.
        CheckpointError: a Router's config file is broken.
    """
    selected: list[ModuleEntry] = []
    for name, path in modules:
        selected += _read(path).modules(task) if is_router(name) else [(name, path)]
    if any(is_router(name) for name, _ in selected):
        raise UnavailableError(f"A Router is nested in another Router, which is not supported. {REMEDY}")
    return selected


def at_encoder(source: Source) -> Source:
    """Return a copy of a source with the encoder's folder instead of the checkpoint's folder.

    The two folders differ if the Transformer is part of a Router or has a folder of its own. If several
    routes have a Transformer, the folder is that of the default route or, without a default, of the first
    route.

    Raises:
        ArchitectureError: the first module is not an encoder.
        CheckpointError: modules.json or the Router's config file is broken.
    """
    return replace(source, folder=encoder_folder(source.folder))


def encoder_folder(folder: Path) -> Path:
    """Return the folder of the encoder of a checkpoint; see `at_encoder`."""
    if has_file(folder, "config.json") or not has_file(folder, MODULES_FILE):
        return folder
    name, path = next(iter(read_modules(folder)), ("", folder))
    kind = name.rpartition(".")[2]
    if kind in TRANSFORMERS or not kind:
        return path
    if not is_router(name):
        raise ArchitectureError(
            f"{folder.name[:100]} has no encoder, because its first module is {kind[:100]}. Use a model "
            "whose first module is Transformer."
        )
    router = _read(path)
    routes = sorted(router.routes, key=lambda route: route != router.default)
    inputs = (modules[0] for modules in map(router.routes.__getitem__, routes) if modules)
    return next((path for name, path in inputs if name.rpartition(".")[2] in TRANSFORMERS), folder)


TRANSFORMERS = ("Transformer", "MLMTransformer")
"""Class names of the sentence-transformers modules that run the encoder."""


def is_router(name: str) -> bool:
    """Return whether a class name refers to sentence-transformers' Router."""
    return name.startswith("sentence_transformers.") and name.rpartition(".")[2] in ROUTERS


def _read(folder: Path) -> Router:
    """Read a Router's routes and task mappings from its folder."""
    names = ("router_config.json", "config.json")
    file = next((folder / name for name in names if has_file(folder, name)), None)
    if file is None:
        raise CheckpointError(f"The Router in {folder.name[:100]} has no router_config.json. {AGAIN}")
    config = read_json(file)
    try:
        types, parameters = dict(config["types"]), dict(config.get("parameters") or {})
        routes = {
            str(route): tuple((str(types[module]), folder / str(module)) for module in modules)
            for route, modules in dict(config["structure"]).items()
        }
        mappings = _read_mappings(parameters.get("route_mappings") or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{file.name} of the Router cannot be read. {AGAIN}") from None
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(routes), None)
    unknown = [str(name)[:100] for name in (*mappings.values(), default) if name not in (*routes, None)]
    if unknown or not routes:
        raise CheckpointError(f"The Router has no route {', '.join(unknown)}. {AGAIN}")
    _check_count(max(len(routes), len(mappings), *map(len, routes.values())), file.name)
    for modules in routes.values():
        _check_inside(folder, modules, file.name)
    return Router(routes, default, mappings)


def _read_mappings(mappings: Mapping[str, Any]) -> dict[tuple[Any, Any], str]:
    """Parse `route_mappings`, whose keys are tuples written as strings, such as "('query', 'text')".

    Other keys are ignored, as in sentence-transformers.
    """
    parsed = {}
    for key, route in dict(mappings).items():
        if len(key) > _MAX_KEY:
            continue
        try:
            value = ast.literal_eval(key)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, tuple) and len(value) == 2:
            parsed[value] = str(route)
    return parsed


def _check_count(count: int, name: str) -> None:
    if count > MAX_MODULES:
        raise CheckpointError(
            f"{name} lists {count:,} modules or routes, but at most {MAX_MODULES} are allowed. {AGAIN}"
        )


def _check_inside(folder: Path, modules: Sequence[ModuleEntry], name: str) -> None:
    try:
        is_inside = all(path.resolve().is_relative_to(folder.resolve()) for _, path in modules)
    except (OSError, RuntimeError, ValueError):  # a symbolic link to itself, or a path with NUL
        is_inside = False
    if not is_inside:
        raise CheckpointError(f"{name} refers to a path outside its folder. {AGAIN}")
