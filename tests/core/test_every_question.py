"""Test properties that every question and its result must have.

`make test` runs the Python, shell and HTTP snippets of an example of each type of field; `make prove`
runs those of all examples.
"""

from __future__ import annotations

import gc
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from starlette.testclient import TestClient
from transformers import PreTrainedTokenizerBase

import bert_probe
from bert_probe.api import schema
from bert_probe.api.registry import RegisteredQuestion, registered_questions
from bert_probe.cli.main import main
from bert_probe.core import files, snippets
from bert_probe.core.inputs import SENTENCES_FILE, InputValues
from bert_probe.core.question import QUESTIONS
from bert_probe.core.result import Result
from bert_probe.errors import SubjectError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.reports.tables import ReportTable
from bert_probe.reports.view_files import ViewFile, read
from bert_probe.runtime import shared_cache
from bert_probe.runtime.cache import cache_key
from tests.helpers.gate import prove_unless
from tests.helpers.http import api_client
from tests.helpers.opening import share_opened_models
from tests.helpers.questions import EXAMPLES, QuestionExample, covering

PUBLIC = [getattr(bert_probe, name) for name in bert_probe.__all__]
"""All public names. This imports their modules, which fills `QUESTIONS`."""

NAMES = [repr(example.question) for example in EXAMPLES]
RUN = prove_unless(covering(EXAMPLES), EXAMPLES)
"""All examples. `make test` runs the snippets only of those that cover the types of fields and files."""


CheckpointOf = Callable[[QuestionExample], Checkpoint]


@pytest.fixture(scope="module")
def checkpoint_of(minilm: Checkpoint, trained_on: Callable[[str, str], Checkpoint]) -> CheckpointOf:
    """Return a function that maps an example to its checkpoint."""
    return lambda example: trained_on("bert", example.trained) if example.trained else minilm


AnswerTo = Callable[[QuestionExample], Result]


@pytest.fixture(scope="module")
def answer_to(checkpoint_of: CheckpointOf) -> AnswerTo:
    """Return a function that maps an example to its result, which is computed once."""
    answers: dict[str, Result] = {}

    def answer(example: QuestionExample) -> Result:
        name = repr(example.question)
        if name not in answers:
            answers[name] = example.question.of(*example.inputs(checkpoint_of(example)))  # type: ignore[attr-defined]
        return answers[name]

    return answer


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Return an API client on the local machine."""
    with api_client() as client:
        yield client


@pytest.fixture(autouse=True)
def models_are_opened_once() -> Iterator[None]:
    """Open each model once instead of for every snippet."""
    with share_opened_models():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(example: QuestionExample) -> None:
    """Write the files that the snippets read into the working folder."""
    lines = "".join(f"{line}\n" for line in example.file)
    for name, content in {SENTENCES_FILE: lines, **example.files}.items():
        Path(name).write_text(content, encoding="utf-8")


def assert_same_numbers(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Assert that two tables are equal, except for float32 rounding errors caused by different batches."""
    assert list(map(str, actual.columns)) == list(map(str, expected.columns))
    for column in range(actual.shape[1]):
        a, b = actual.iloc[:, column], expected.iloc[:, column]
        if pd.api.types.is_float_dtype(a):
            peak = np.nanmax(np.abs(a.to_numpy(dtype=float)), initial=1.0)
            tolerance = 64 * np.finfo(np.float32).eps * peak
            np.testing.assert_allclose(
                a.to_numpy(dtype=float), b.to_numpy(dtype=float), rtol=0, atol=tolerance
            )
        else:
            assert [str(cell) for cell in a] == [str(cell) for cell in b]


def test_every_question_has_an_example() -> None:
    assert {type(example.question) for example in EXAMPLES} == set(QUESTIONS.values())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_python_snippet_reproduces_the_table(example: QuestionExample, answer_to: AnswerTo) -> None:
    result = answer_to(example)
    write_files(example)
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    assert_same_numbers(result.table(), again)
    assert again.attrs["provenance"] == result.table().attrs["provenance"]


@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_shell_snippet_reproduces_the_table(
    example: QuestionExample, answer_to: AnswerTo, folder: Path
) -> None:
    result = answer_to(example)
    write_files(example)
    program, *words = shlex.split(result.shell)
    assert program == "bert-probe"
    length = len(result.question.command.split())  # Some commands have two words, such as "diff heads".
    with pytest.raises(SystemExit) as ended:
        main([*words[:length], "--out", "again.csv", *words[length:]])
    assert ended.value.code == 0
    saved = json.loads((folder / "again.csv.meta.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(result.provenance))
    result.save(folder / "first.csv")
    first, again = (
        pd.read_csv(io.BytesIO((folder / f"{name}.csv").read_bytes())) for name in ("first", "again")
    )
    assert_same_numbers(first, again)


@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_http_snippet_reproduces_the_table(
    example: QuestionExample, answer_to: AnswerTo, checkpoint_of: CheckpointOf, client: TestClient
) -> None:
    result = answer_to(example)
    program, url, option, content = shlex.split(result.http.splitlines()[-1])
    assert (program, option) == ("curl", "--json")
    body, question = json.loads(content), registered_questions()[url.rpartition("/")[2]]
    texts = {SENTENCES_FILE: "".join(f"{line}\n" for line in example.file), **example.files}
    for file in [
        *body.get("files", {}).values(),
        *filter(None, [body.get(question.question.inputs.list_name)]),
    ]:
        file["content"] = texts[file["file"]]
    jsonschema.Draft202012Validator(schema.body_schema(question)).validate(body)
    if example.trained:
        shared_cache.register_in_memory(checkpoint_of(example), body["model"])
    if question.has_progress:
        _cache(result, question, example.inputs(checkpoint_of(example)))
    answer = client.post(
        url.removeprefix(snippets.DEFAULT_URL),
        json=body,
        headers={"Accept": "application/vnd.apache.parquet"},
    )
    assert answer.status_code == 200, answer.text
    again, first = (
        pyarrow.parquet.read_table(io.BytesIO(content))
        for content in (answer.content, files.to_bytes(result.table(), "parquet"))
    )
    assert_same_numbers(first.to_pandas(), again.to_pandas())
    assert first.schema.metadata == again.schema.metadata


def _cache(result: Result, question: RegisteredQuestion, subjects: tuple[Any, ...]) -> None:
    """Cache a result under the key that the API uses, so that the API does not compute it again."""
    inputs = question.inputs
    values = InputValues(sentences=None, truncate=False)
    missing = inputs.arguments(values)[len(subjects) - inputs.models :] if inputs.files else []
    key = cache_key(result.question, *subjects, *missing)
    shared_cache.answers.cache.once((*key, ()), lambda: result)


def held_bytes(value: object) -> int:
    """Return the total size of the arrays and texts that an object refers to, without those of its model."""
    total, seen, stack = 0, set(), [value]
    others = (type, ModuleType, FunctionType, Checkpoint, torch.nn.Module, PreTrainedTokenizerBase)
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, others):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            total += item.nbytes if item.base is None else 0
            stack.append(item.base)
        elif isinstance(item, torch.Tensor):
            total += item.untyped_storage().nbytes()
        elif isinstance(item, str):
            total += sys.getsizeof(item)
        stack += gc.get_referents(item)
    return total


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_size_of_a_result_includes_all_that_it_keeps(example: QuestionExample, answer_to: AnswerTo) -> None:
    """The caches limit the total size of results."""
    result = answer_to(example)
    assert held_bytes(result) < 3 * result.nbytes + 50_000


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_json_round_trip_keeps_the_question(
    example: QuestionExample, checkpoint_of: CheckpointOf, answer_to: AnswerTo
) -> None:
    fields_schema = schema.question_schema(
        registered_questions()[snippets.url_name(example.question.analysis)]
    )
    for question in (example.question, answer_to(example).question):
        record = json.loads(json.dumps(question.to_json()))
        jsonschema.Draft202012Validator(fields_schema).validate(record)
        assert type(question).from_json(record, checkpoint_of(example).description) == question
        assert (
            type(question).from_json(question.non_default_json(), checkpoint_of(example).description)
            == question
        )


@pytest.mark.usefixtures("folder")
def test_snippets_can_escape_formulas_in_csv(minilm: Checkpoint) -> None:
    result = bert_probe.Tokens().of(minilm.trace("=1"))
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out, pytest.raises(SystemExit):
        main(shlex.split(snippets.shell(result.question, result.inputs, csv_safe=True))[1:])
    assert isinstance(out.buffer, io.BytesIO)
    exec(snippets.python(result.question, result.inputs, csv_safe=True))
    assert Path("tokens.csv").read_bytes() == out.buffer.getvalue()
    assert b"\n1,'=," in out.buffer.getvalue()


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_each_field_changes_cache_key_url_and_provenance(
    example: QuestionExample, checkpoint_of: CheckpointOf
) -> None:
    subjects = example.inputs(checkpoint_of(example))
    assert set(example.other_values) == {field.name for field in fields(example.question)}
    for name, value in example.other_values.items():
        other = replace(example.question, **{name: value})
        assert getattr(other, name) != getattr(example.question, name), name
        assert cache_key(other, *subjects) != cache_key(example.question, *subjects)
        assert other.address() != example.question.address(), name
        assert (other.to_json() == example.question.to_json()) == (name in example.idle), name
        assert repr(other) != repr(example.question), name


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_url_round_trip_keeps_the_question(
    example: QuestionExample, checkpoint_of: CheckpointOf, answer_to: AnswerTo
) -> None:
    for question in (example.question, answer_to(example).question):
        assert type(question).from_address(question.address(), checkpoint_of(example).description) == question
        assert hash(replace(question)) == hash(question)


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_view_file_round_trip_keeps_the_question(
    example: QuestionExample, checkpoint_of: CheckpointOf, answer_to: AnswerTo
) -> None:
    result = answer_to(example)
    if result.inputs.sentences and not isinstance(getattr(result, "sentences", None), tuple):
        with pytest.raises(UnavailableError, match=r"cannot be saved in a view file"):
            ViewFile.of(result)
        return
    view = read(ViewFile.of(result).to_bytes())
    assert view == ViewFile.of(result)
    assert view.asked_of(checkpoint_of(example)) == result.question
    assert [model.weights_sha256 for model in view.models] == [
        model["weights_sha256"] for model in result.inputs.models
    ]
    table = ReportTable.of(result.table())
    assert ReportTable.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False))) == table
    assert table.rows == len(result.table())


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_result_describes_itself(
    example: QuestionExample, checkpoint_of: CheckpointOf, answer_to: AnswerTo
) -> None:
    result = answer_to(example)
    assert "\n" not in repr(result)
    assert repr(result.question) in repr(result)
    assert "<table" in result._repr_html_()
    assert result.provenance["question"] == result.question.to_json()
    assert result.provenance["weights_sha256"] == checkpoint_of(example).description.weights_sha256
    assert json.dumps(result.provenance)
    assert type(result.question) is type(example.question)
    joined, table = result.joined([*result.parts()]), result.table()
    pd.testing.assert_frame_equal(joined, table)
    assert joined.attrs == table.attrs


@pytest.mark.prove
def test_sort_order_is_the_order_of_the_table(answer_to: AnswerTo) -> None:
    sorted_tables = set()
    for result in map(answer_to, EXAMPLES):
        tables = [result]
        for field in fields(result.question):
            if field.name == "show" and field.metadata["display_only"]:
                words = getattr(field.metadata["kind"], "words", ())
                tables += [result.showing(show=word) for word in words]
        for result in tables:
            if result.sort_order is None:
                continue
            order = result.sort_order
            with suppress(UnavailableError):  # some tables need a second model
                table = result.table()
                numbers = table[order.column].abs() if order.by_magnitude else table[order.column]
                groups = numbers.groupby(table[order.within], sort=False) if order.within else [("", numbers)]
                for _, group in groups:
                    assert group.is_monotonic_decreasing or group.is_monotonic_increasing, result
                sorted_tables.add(f"{type(result.question).__name__} {order.column}")
    assert sorted_tables == {
        "ClassifyText logit",
        "Contacts corrected_attention",
        "Evaluate probability",
        "FindHeads weight",
        "HeadAblationSweep mean_token_change",
        "HeadChange total_variation",
        "LabelEvaluation probability",
        "MinimalPair jensen_shannon",
        "MinimalPair total_variation",
        "Sentences cosine",
        "SimilarityEvaluation error",
    }


@pytest.mark.gate(cases=54)
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_wrong_input_is_refused_by_type(
    example: QuestionExample, checkpoint_of: CheckpointOf, minilm: Checkpoint
) -> None:
    first, *further = example.inputs(checkpoint_of(example))
    if isinstance(first, list):
        pytest.skip("takes a list of traces")
    wrong = minilm if isinstance(first, Trace) else minilm.trace("One two")
    with pytest.raises(SubjectError) as caught:
        example.question.of(wrong, *further)  # type: ignore[attr-defined]
    question, expected, actual = (type(value).__name__ for value in (example.question, first, wrong))
    assert str(caught.value) == (
        f"{question} needs a {expected}, not a {actual}. "
        "bert_probe.load returns a Checkpoint, whose method trace returns a Trace."
    )
