"""Write the sentence-transformers files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from bert_probe.model.sentence_modules import MODEL_FILE, TOKENS, SentenceModel
from bert_probe.model.sentence_router import MODULES_FILE

_DEFAULT = "default"
"""Name of the route for texts without a task, unless a task has the same route."""


def write_sentence_model(folder: Path, model: SentenceModel) -> None:
    """Write the files that `read_sentence_model` reads, in the format of sentence-transformers.

    Unsupported routes are omitted. A Router and its modules have their own folder.
    """
    routes = {task: route for task, route in model.routes if isinstance(route, SentenceModel)}
    lengths = {
        f"{task}_length": route.max_tokens
        for task, route in routes.items()
        if route.max_tokens != model.max_tokens
    }
    entries = [("", "Transformer")]
    if all(_modules(route) == _modules(model) for route in routes.values()):
        entries += _write_modules(folder, model, "")
    else:
        entries += [("1_Router", "Router")]
        _write_router(folder / "1_Router", model, routes)
    _write(
        folder / MODULES_FILE,
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(entries)
        ],
    )
    limits = {"max_seq_length": model.max_tokens, "do_lower_case": model.lower_case}
    _write(folder / "sentence_bert_config.json", limits | lengths)
    options = {
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
        "similarity_fn_name": model.similarity,
        "truncate_dim": model.dimensions,
    }
    _write(folder / MODEL_FILE, options)


def _write_router(folder: Path, model: SentenceModel, routes: dict[str, SentenceModel]) -> None:
    """Write the modules of all routes, and the Router's own file."""
    folder.mkdir(exist_ok=True)
    default = next((task for task, route in routes.items() if _modules(route) == _modules(model)), _DEFAULT)
    all_routes = routes if default in routes else routes | {_DEFAULT: model}
    modules = {task: _write_modules(folder, route, f"{task}_") for task, route in all_routes.items()}
    parameters = {
        "default_route": None if model.default_error else default,
        "allow_empty_key": not model.default_error,
    }
    config = {
        "types": {
            path: f"sentence_transformers.models.{kind}" for route in modules.values() for path, kind in route
        },
        "structure": {task: [path for path, _ in route] for task, route in modules.items()},
        "parameters": parameters,
    }
    # Versions of sentence-transformers before 5 read config.json.
    for name in ("router_config.json", "config.json"):
        _write(folder / name, config)


def _write_modules(folder: Path, model: SentenceModel, prefix: str) -> list[tuple[str, str]]:
    """Write the modules after the Transformer; return the folder name and the kind of each module.

    Args:
        prefix: prefix of the folder names.
    """
    entries = []
    for number, module in enumerate((*model.token_modules, None, *model.vector_modules), 1):
        kind = "Pooling" if module is None else module.kind
        path = f"{prefix}{number}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        entries.append((path, kind))
        if module is None:
            pooling = {"pooling_mode": list(model.modes), "include_prompt": model.include_prompt}
            config = {"embedding_dimension": model.size_of_token} | pooling
        else:
            inputs = {"module_input_name": TOKENS} if number <= len(model.token_modules) else {}
            config = module.config | inputs
            if module.sha256:
                weights = {name: tensor.contiguous() for name, tensor in module.network.state_dict().items()}
                save_file(weights, folder / path / "model.safetensors")
        _write(folder / path / "config.json", config)
    return entries


def _modules(model: SentenceModel) -> tuple[Any, ...]:
    return model.modes, model.include_prompt, model.token_modules, model.vector_modules


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
