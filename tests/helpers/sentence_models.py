"""Tiny sentence-transformers checkpoints with many layouts of modules, saved by sentence-transformers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bert_probe.model.from_model import keep_float64
from tests.helpers import families

PROMPTS = {"query": "where is: ", "document": "", "passage": "boat: "}


@dataclass(frozen=True)
class Layout:
    """The configuration of a tiny sentence-transformers model.

    Attributes:
        modules: names and settings of the modules after the Transformer.
        transformer: settings of the Transformer module.
        options: settings of the model, such as prompts.
        family: the family of the encoder.
        routes: modules of each route of a Router, which follows the other modules.
        is_first: whether the Router also contains the Transformer and the other modules.
        router: settings of the Router.
    """

    modules: tuple[tuple[str, dict[str, Any]], ...]
    transformer: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    family: str = "bert"
    routes: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = field(default_factory=dict)
    is_first: bool = False
    router: Mapping[str, Any] = field(default_factory=lambda: {"default_route": "document"})


def _pool(mode: Any = "mean", **settings: Any) -> tuple[str, dict[str, Any]]:
    return "Pooling", {"embedding_dimension": 32, "pooling_mode": mode} | settings


def _dense(
    size: int, activation: str = "Tanh", inputs: int = 32, **settings: Any
) -> tuple[str, dict[str, Any]]:
    function = getattr(torch.nn, activation)()
    return "Dense", {"in_features": inputs, "out_features": size, "activation_function": function} | settings


_NORMALIZE: tuple[str, dict[str, Any]] = ("Normalize", {})
_PROMPTED = {"prompts": PROMPTS, "default_prompt_name": "query"}

LAYOUTS: dict[str, Layout] = {
    "mean": Layout((_pool(),)),
    "cls": Layout((_pool("cls"), _NORMALIZE)),
    "max": Layout((_pool("max"),)),
    "sqrt": Layout((_pool("mean_sqrt_len_tokens"),)),
    "weighted": Layout((_pool("weightedmean"),)),
    "last": Layout((_pool("lasttoken"), _NORMALIZE)),
    "joined": Layout((_pool(("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")),)),
    "dense": Layout((_pool(), _dense(20))),
    "dense identity": Layout((_pool(), _dense(20, "Identity", bias=False), _NORMALIZE)),
    "two dense": Layout(
        (_pool(), _dense(48, "Identity", bias=False), _dense(16, "Identity", 48, bias=False), _NORMALIZE)
    ),
    "dense gelu": Layout((_pool("cls"), _dense(24, "GELU"))),
    "dense relu6": Layout((_pool("max"), _dense(24, "ReLU6"), _dense(8, "SiLU", 24))),
    "residual": Layout((_pool(), _dense(20, "Identity", use_residual=True))),
    "residual same": Layout((_pool(), _dense(32, "Tanh", use_residual=True))),
    "layer norm": Layout((_pool(), ("LayerNorm", {"dimension": 32}), _NORMALIZE)),
    "normalize first": Layout(
        (_pool(), _NORMALIZE, _dense(20, "Identity"), ("LayerNorm", {"dimension": 20}))
    ),
    "dropout": Layout((_pool(), ("Dropout", {"dropout": 0.3}), _dense(20))),
    "token dense": Layout(
        (
            _dense(20, "Tanh", module_input_name="token_embeddings"),
            ("Pooling", {"embedding_dimension": 20, "pooling_mode": "mean"}),
        )
    ),
    "token normalize": Layout(
        (("Normalize", {"module_input_name": "token_embeddings"}), _pool(), _NORMALIZE)
    ),
    "lowercase": Layout((_pool(),), {"do_lower_case": True}, family="roberta"),
    "limit": Layout((_pool(),), {"max_seq_length": 7}),
    "prompts": Layout((_pool(),), options=_PROMPTED),
    "prompts optional": Layout((_pool(), _NORMALIZE), options={"prompts": PROMPTS}),
    "no prompt pooled": Layout((_pool(include_prompt=False),), options=_PROMPTED),
    "no prompt pooled, joined": Layout(
        (_pool(("cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"), include_prompt=False),),
        options=_PROMPTED,
        family="roberta",
    ),
    "no prompt pooled, limit": Layout(
        (_pool(include_prompt=False),), {"max_seq_length": 12}, options=_PROMPTED
    ),
    "dot": Layout((_pool(),), options={"similarity_fn_name": "dot"}),
    "euclidean": Layout((_pool(), _dense(20)), options={"similarity_fn_name": "euclidean"}),
    "manhattan": Layout((_pool("cls"),), options={"similarity_fn_name": "manhattan"}),
    "truncated": Layout((_pool(), _NORMALIZE), options={"truncate_dim": 12}),
    "decoder": Layout((_pool("lasttoken"), _NORMALIZE), options=_PROMPTED, family="qwen3"),
    "gemma": Layout(
        (_pool(), _dense(48, "Identity", bias=False), _dense(16, "Identity", 48, bias=False), _NORMALIZE),
        options={"prompts": PROMPTS},
        family="gemma3_text",
    ),
    "router": Layout(
        (_pool(),), routes={"query": (_dense(20),), "document": (_dense(20, "Identity"), _NORMALIZE)}
    ),
    "router with the encoder": Layout(
        (),
        {"query_length": 12},
        routes={
            "query": (_pool("cls", include_prompt=False), _dense(20, "Identity")),
            "document": (_pool(), _dense(20, "Identity"), _NORMALIZE),
        },
        options=_PROMPTED,
        is_first=True,
    ),
    "lengths": Layout((_pool(),), {"query_length": 5, "document_length": 9}),
    "encoder of T5": Layout((_pool(), _dense(20, "Identity", bias=False), _NORMALIZE), family="t5"),
}
"""Name of a layout → configuration of a tiny model with this layout."""

WITHOUT_DEFAULT: dict[str, Layout] = {
    "router without a default": Layout(
        (_pool(),),
        options={"prompts": {"passage": "boat: "}},
        routes={"a": (_dense(20),), "b": (_dense(20),), "document": (_dense(20),)},
        router={
            "allow_empty_key": False,
            "route_mappings": {("query", "text"): "a", ("other", None): "b", ("document", None): "b"},
        },
    ),
}
"""Layouts that cannot encode a text without a task."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the warnings of sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save(name: str, encoder: Path, folder: Path) -> Path:
    """Save a sentence-transformers model with the modules of `LAYOUTS[name]` into a folder.

    Args:
        encoder: folder of a tiny encoder of the architecture that the modules need.
    """
    layout = (LAYOUTS | WITHOUT_DEFAULT)[name]
    with without_warnings():
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sentence_transformer import modules

        torch.manual_seed(1)

        def create(described: Any) -> list[Any]:
            created = [getattr(modules, kind)(**settings) for kind, settings in described]
            for module in created:
                families.randomize(module, 2)
            return created

        created = [Transformer(str(encoder), **layout.transformer), *create(layout.modules)]
        if layout.routes:
            shared = created if layout.is_first else []
            routes = {name: [*shared, *create(described)] for name, described in layout.routes.items()}
            for seed, route in enumerate(routes.values()):
                families.randomize(torch.nn.ModuleList(route[len(shared) :]), seed)
            router = modules.Router(routes, **layout.router)
            created = [router] if layout.is_first else [*created, router]
        model = SentenceTransformer(modules=created, device="cpu", **layout.options)
        model.save(str(folder), create_model_card=False)
    return folder


def reference(folder: Path, dtype: str = "float32") -> Any:
    """Return the model in a folder, loaded by the library sentence-transformers in float32 or float64."""
    with without_warnings():
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": getattr(torch, dtype)}
        )
    if dtype == "float64":
        # Buffers keep their dtype, as in `bert_probe.load`, because rotary frequencies are float32.
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
        for module in model.modules():
            if hasattr(module, "auto_model"):
                keep_float64(module.auto_model)
    return model
