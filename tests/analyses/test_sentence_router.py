"""Test sentence-transformers checkpoints that encode queries and documents with different modules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import Sentences, SentenceSimilarity, Train
from bert_probe.analyses.retrieval.search import Search
from bert_probe.analyses.vectors.pooling import prompt_names, resolve_pooling
from bert_probe.errors import CheckpointError, ProbeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.sources import stamp
from tests.helpers import families, sentence_models
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import texts as labeled

TEXTS = [*families.SENTENCES, "a boat", "night " * 8]
NAMES = ("router", "router with the encoder", "router without a default", "lengths")


@pytest.fixture(scope="module")
def routed(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a factory that maps a layout to (folder, BERT Probe model, sentence-transformers model)."""
    root, opened = tmp_path_factory.mktemp("routers"), {}

    def open_layout(name: str) -> tuple[Path, Checkpoint, Any]:
        if name not in opened:
            folder = sentence_models.save(name, family_folder("bert"), root / name.replace(" ", "-"))
            checkpoint = bert_probe.load(folder, dtype="float64")
            keep_float64(checkpoint.model)
            opened[name] = folder, checkpoint, sentence_models.reference(folder, "float64")
        return opened[name]

    return open_layout


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", NAMES)
def test_tasks_equal_sentence_transformers(name: str, routed: Any) -> None:
    _, checkpoint, model = routed(name)
    question = Sentences("model", prompt="query")
    queries = question.of(checkpoint, TEXTS)
    assert_exact(queries.vectors, model.encode_query(TEXTS))
    documents = Sentences("model", prompt="document").of(checkpoint, TEXTS)
    assert_exact(documents.vectors, model.encode(TEXTS, prompt_name="document", task="document"))
    assert not np.allclose(queries.vectors, documents.vectors)
    assert "encoded for the task query" in str(queries.recipe)
    score = SentenceSimilarity(prompt="query", pair_prompt="document").of(
        *(checkpoint.trace(text) for text in TEXTS[:2])
    )
    expected = model.similarity(queries.vectors[:1], documents.vectors[1:2]).item()
    assert score.score == pytest.approx(expected, abs=1e-10)
    ranking = Search(TEXTS[0]).of(checkpoint, TEXTS)
    assert_exact(
        ranking.scores["bi-encoder"],
        model.similarity(model.encode_query(TEXTS[:1]), model.encode_document(TEXTS)).numpy()[0],
    )


@pytest.mark.parametrize("name", NAMES)
def test_text_without_a_task_equals_sentence_transformers(name: str, routed: Any) -> None:
    _, checkpoint, model = routed(name)
    if name == "router without a default":
        with pytest.raises(UnavailableError, match=r"no route for a text without a task\. Choose .* query,"):
            Sentences("model").of(checkpoint, TEXTS)
        assert_exact(
            Sentences("model", prompt="other").of(checkpoint, TEXTS).vectors,
            model.encode(TEXTS, task="other"),
        )
        return
    assert_exact(Sentences("model").of(checkpoint, TEXTS).vectors, model.encode(TEXTS))
    assert set(prompt_names(checkpoint)) >= {"query", "document"}


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", prove_unless({"router", "lengths"}, NAMES))
def test_trained_model_keeps_its_routes(name: str, routed: Any, tmp_path: Path) -> None:
    source = routed(name)[1]
    folder = Train("all", epochs=1, rate=1e-2).of(source, labeled(12)).save_model(tmp_path / "trained")
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    model = sentence_models.reference(folder, "float64")
    for task in ("query", "document"):
        expected = model.encode(TEXTS, prompt_name=task, task=task)
        assert_exact(Sentences("model", prompt=task).of(checkpoint, TEXTS).vectors, expected)
    if name != "router without a default":
        assert_exact(Sentences("model").of(checkpoint, TEXTS).vectors, model.encode(TEXTS))


def test_the_encoder_in_a_router_is_opened(routed: Any) -> None:
    folder, checkpoint, _ = routed("router with the encoder")
    assert checkpoint.folder == folder
    assert {name for name, *_ in stamp(str(folder)) or ()} >= {
        "router_config.json",
        "query_0_Transformer/model.safetensors",
        "query_2_Dense/model.safetensors",
    }
    check = bert_probe.check(folder, config_only=True).table().set_index("capability")
    assert check.loc["architecture", "works"] == "yes"


def _change(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps(change(json.loads(file.read_text()))))

    return apply


_MAPPINGS = {f"('task {number}', None)": "query" for number in range(33)}


def _types(**types: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: config | {"types": config["types"] | types}


def _second_encoder(folder: Path) -> None:
    """Add a separate Transformer module for documents to a checkpoint."""
    shutil.copytree(folder / "query_0_Transformer", folder / "document_0_Transformer")
    file = folder / "router_config.json"
    config = json.loads(file.read_text())
    config["types"]["document_0_Transformer"] = config["types"]["query_0_Transformer"]
    config["structure"]["document"][0] = "document_0_Transformer"
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "prompt", "error", "sentence"),
    [
        (
            _second_encoder,
            "query",
            UnavailableError,
            "is in query_0_Transformer, but the model in document_0_",
        ),
        (
            _change(
                "router_config.json", _types(query_1_Pooling="sentence_transformers.models.StaticEmbedding")
            ),
            "query",
            UnavailableError,
            "StaticEmbedding is not supported: it has one vector per token and no encoder",
        ),
        (
            _change("router_config.json", _types(query_1_Pooling="sentence_transformers.models.Router")),
            "query",
            UnavailableError,
            "nested in another Router",
        ),
        (_change("router_config.json", lambda _: {}), None, CheckpointError, "Router cannot be read"),
        (_change("router_config.json", lambda _: []), None, CheckpointError, "Router cannot be read"),
        (
            _change("router_config.json", lambda config: config | {"structure": {"query": ["../a"]}}),
            None,
            CheckpointError,
            "cannot be read",
        ),
        (
            _change("router_config.json", lambda config: config | {"parameters": {"default_route": "title"}}),
            None,
            CheckpointError,
            "The Router has no route title",
        ),
        (
            _change(
                "router_config.json", lambda config: config | {"parameters": {"route_mappings": _MAPPINGS}}
            ),
            None,
            CheckpointError,
            "lists 33 modules or routes, but at most 32",
        ),
    ],
)
def test_routes_that_are_not_supported_say_why(
    change: Callable[[Path], None], prompt: str | None, error: Any, sentence: str, routed: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(routed("router with the encoder")[0], tmp_path / "changed")
    change(folder)
    with pytest.raises(error, match=sentence):
        resolve_pooling(bert_probe.load(folder), "model", prompt)


def test_a_route_with_an_encoder_of_its_own_leaves_the_other_route(routed: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(routed("router with the encoder")[0], tmp_path / "two")
    _second_encoder(folder)
    checkpoint, model = bert_probe.load(folder, dtype="float64"), sentence_models.reference(folder, "float64")
    keep_float64(checkpoint.model)
    assert_exact(
        Sentences("model", prompt="document").of(checkpoint, TEXTS).vectors, model.encode_document(TEXTS)
    )


def test_router_without_encoder_has_no_model(routed: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(routed("router with the encoder")[0], tmp_path / "static")
    _change("router_config.json", _types(query_0_Transformer="sentence_transformers.models.BoW"))(folder)
    with pytest.raises(ProbeError, match=r"has no config\.json"):
        bert_probe.load(folder)


def test_tasks_with_the_same_route_share_its_modules(routed: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(routed("router with the encoder")[0], tmp_path / "shared")
    mappings = {"parameters": {"route_mappings": {f"('{name}', None)": "query" for name in ("a", "b")}}}
    _change("router_config.json", lambda config: config | mappings)(folder)
    routes = dict(bert_probe.load(folder).sentence_model.routes)  # type: ignore[union-attr]
    assert routes["a"] is routes["b"]  # tasks "a" and "b" are mapped to the route "query"


@pytest.mark.parametrize("name", ["router", "lengths"])
def test_checkpoint_without_prompts_has_tasks(name: str, routed: Any, tmp_path: Path) -> None:
    """Old checkpoints declare no prompt, or only a prompt for passages, so queries have no default prompt."""
    folder = shutil.copytree(routed(name)[0], tmp_path / "old")
    prompts = {"prompts": {"passage": "boat: "}, "default_prompt_name": "passage"}
    _change("config_sentence_transformers.json", lambda config: config | prompts)(folder)
    checkpoint, model = bert_probe.load(folder, dtype="float64"), sentence_models.reference(folder, "float64")
    keep_float64(checkpoint.model)
    query, passage = model.encode_query(TEXTS[:1]), model.encode(TEXTS, prompt="boat: ", task="document")
    ranking = Search(TEXTS[0]).of(checkpoint, TEXTS)
    assert_exact(ranking.scores["bi-encoder"], model.similarity(query, passage).numpy()[0])
    assert_exact(Sentences("model", prompt="query").of(checkpoint, TEXTS[:1]).vectors, query)
    assert_exact(Sentences("model").of(checkpoint, TEXTS).vectors, model.encode(TEXTS))
