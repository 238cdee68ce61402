"""Test evaluation of masked words: each number compared with the raw model, line by line, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bert_probe import EvaluateMasks
from bert_probe.errors import EmptyTextError, SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from tests.helpers.command_line import bert_probe as run
from tests.helpers.exactness import assert_exact
from tests.helpers.questions import SENTENCES

Trained = Callable[[str, str], Checkpoint]
Folders = Callable[[str, str], Path]
FILLING = "fill-mask"
LINES = ("A [MASK] of the wide valley", *SENTENCES, "", *SENTENCES[:2])


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_predictions_at_masks_equal_raw_model(
    name: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    result = EvaluateMasks(seed=4, show="masks").of(double_trained_on(name, FILLING), LINES)
    folder = trained_folder(name, FILLING)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float64).eval()
    keep_float64(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    table = result.table()
    for line, rows in table.groupby("line"):
        inputs = tokenizer(LINES[line - 1], return_tensors="pt")
        right, position = inputs["input_ids"][0].clone(), torch.tensor(rows["position"].to_numpy())
        free = [token for token in right.tolist() if token not in tokenizer.all_special_ids]
        assert len(rows) == max(1, round(0.15 * len(free)))
        assert tokenizer.convert_ids_to_tokens(right[position].tolist()) == rows["token"].tolist()
        inputs["input_ids"][0, position] = tokenizer.mask_token_id
        with torch.inference_mode():
            logits = model(**inputs).logits[0, position]
        order = logits.argsort(dim=-1, descending=True)
        assert (order == right[position][:, None]).nonzero()[:, 1].add(1).tolist() == rows["rank"].tolist()
        assert_exact(
            rows["probability"].to_numpy(), logits.softmax(-1)[range(len(position)), right[position]].numpy()
        )
        assert tokenizer.convert_ids_to_tokens(order[:, 0].tolist()) == rows["guess"].tolist()
    question = {number for number, line in enumerate(LINES, start=1) if line}
    assert set(table["line"]) == question


def test_measures_follow_from_the_table(trained_on: Trained) -> None:
    result = EvaluateMasks(seed=1).of(trained_on("bert", FILLING), LINES)
    table = result.table()
    measures = dict(zip(table["measure"], table["value"], strict=True))
    assert measures["masks"] == len(result.ranks) == len(result.tokens)
    assert measures["first_guess"] == sum(
        token == guess for token, guess in zip(result.tokens, result.guesses, strict=True)
    ) / len(result.tokens)
    assert measures["among_5"] == np.mean([rank <= 5 for rank in result.ranks])
    assert measures["bits"] == pytest.approx(np.mean(-np.log2(np.exp(result.logs))))
    assert measures["most_frequent_first_guess"] == max(map(result.tokens.count, result.tokens)) / len(
        result.tokens
    )


def test_seed_selects_the_masks(trained_on: Trained) -> None:
    item, same, other = (EvaluateMasks(seed).of(trained_on("bert", FILLING), LINES) for seed in (1, 1, 2))
    assert item.positions.tolist() == same.positions.tolist() != other.positions.tolist()


def test_invalid_input_raises_errors(minilm: Checkpoint, trained_on: Trained) -> None:
    head = trained_on("bert", FILLING)
    with pytest.raises(UnavailableError, match="no trained head for fill-mask"):
        EvaluateMasks().of(minilm, LINES)
    with pytest.raises(EmptyTextError, match="No line has a token that can be masked"):
        EvaluateMasks().of(head, ["[MASK]", "[UNK]"])
    with pytest.raises(TextError):
        EvaluateMasks().of(head, ["", " "])
    with pytest.raises(TextError, match=r"Line 2|line 2"):
        EvaluateMasks().of(head, ["short", "long " * 3000])
    with pytest.raises(SelectionError, match="seed"):
        EvaluateMasks(-1)


@pytest.mark.prove
def test_command_evaluates_masked_words(trained_folder: Folders, tmp_path: Path) -> None:
    folder, lines = trained_folder("bert", FILLING), tmp_path / "lines.txt"
    lines.write_text("\n".join(LINES), encoding="utf-8")
    reports = run("evaluate", str(folder), str(lines), "--seed", "4").records
    assert [report["measure"] for report in reports][:4] == [
        "first_guess",
        "first_guess_low",
        "first_guess_high",
        "among_5",
    ]
    masks = run("evaluate", str(folder), str(lines), "--show", "masks").records
    assert {*masks[0]} == {"line", "position", "token", "rank", "probability", "guess"}
    assert (
        "Choose --show measures or masks, and omit --training."
        in run("evaluate", str(folder), str(lines), "--show", "wrong").refusal
    )
