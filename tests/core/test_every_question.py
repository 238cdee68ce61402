"""What holds for every question and its result, whatever is asked.

`make test` runs the lines in Python, shell and HTTP for each kind of input with each type of field;
`make prove` runs those of all examples.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from starlette.testclient import TestClient

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
from tests.helpers.questions import EXAMPLES, Example, covering

PUBLIC = [getattr(bert_probe, name) for name in bert_probe.__all__]
"""All of them, each imported by now: a question is in `QUESTIONS` once its module is imported."""

NAMES = [repr(example.question) for example in EXAMPLES]
RUN = prove_unless(covering(EXAMPLES), EXAMPLES)
"""All examples; the gate runs the lines of those that cover the kinds of input and the types of fields."""


Asked = Callable[[Example], Checkpoint]


@pytest.fixture(scope="module")
def asked(minilm: Checkpoint, trained_on: Callable[[str, str], Checkpoint]) -> Asked:
    """Whom an example is asked of."""
    return lambda example: trained_on("bert", example.trained) if example.trained else minilm


@pytest.fixture(scope="module")
def answers(asked: Asked) -> dict[str, Result]:
    """Every example's result, by the question's name."""
    return {
        repr(example.question): example.question.of(*example.inputs(asked(example)))  # type: ignore[attr-defined]
        for example in EXAMPLES
    }


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """The app, for a program of this machine."""
    with api_client() as client:
        yield client


@pytest.fixture(autouse=True)
def models_are_opened_once() -> Iterator[None]:
    """Or every line would open its model anew."""
    with share_opened_models():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(example: Example) -> None:
    """The files that both lines read, in the folder that one works in."""
    lines = "".join(f"{one}\n" for one in example.file)
    for name, content in {SENTENCES_FILE: lines, **example.files}.items():
        Path(name).write_text(content, encoding="utf-8")


def same_numbers(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal tables; numbers to what a batch may change of float32."""
    assert list(map(str, one.columns)) == list(map(str, other.columns))
    for name in range(one.shape[1]):
        a, b = one.iloc[:, name], other.iloc[:, name]
        if pd.api.types.is_float_dtype(a):
            peak = np.nanmax(np.abs(a.to_numpy(dtype=float)), initial=1.0)
            few = 64 * np.finfo(np.float32).eps * peak
            np.testing.assert_allclose(a.to_numpy(dtype=float), b.to_numpy(dtype=float), rtol=0, atol=few)
        else:
            assert [str(cell) for cell in a] == [str(cell) for cell in b]


def test_every_question_has_an_example() -> None:
    assert {type(example.question) for example in EXAMPLES} == set(QUESTIONS.values())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_the_python_line_makes_the_same_table(example: Example, answers: dict[str, Result]) -> None:
    result = answers[repr(example.question)]
    write(example)
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    same_numbers(result.table(), again)
    assert again.attrs["provenance"] == result.table().attrs["provenance"]


@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_the_shell_line_writes_the_same_table(
    example: Example, answers: dict[str, Result], folder: Path
) -> None:
    result = answers[repr(example.question)]
    write(example)
    program, *words = shlex.split(result.shell)
    assert program == "bert-probe"
    length = len(result.question.command.split())  # of the command, such as diff heads
    with pytest.raises(SystemExit) as ended:
        main([*words[:length], "--out", "again.csv", *words[length:]])
    assert ended.value.code == 0
    saved = json.loads((folder / "again.csv.meta.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(result.provenance))
    result.save(folder / "first.csv")
    first, again = (
        pd.read_csv(io.BytesIO((folder / f"{name}.csv").read_bytes())) for name in ("first", "again")
    )
    same_numbers(first, again)


@pytest.mark.parametrize("example", RUN, ids=NAMES)
def test_the_http_body_brings_the_same_table(
    example: Example, answers: dict[str, Result], asked: Asked, client: TestClient
) -> None:
    result = answers[repr(example.question)]
    program, address, option, written = shlex.split(result.http.splitlines()[-1])
    assert (program, option) == ("curl", "--json")
    body, one = json.loads(written), registered_questions()[address.rpartition("/")[2]]
    texts = {SENTENCES_FILE: "".join(f"{line}\n" for line in example.file), **example.files}
    for file in [*body.get("files", {}).values(), *filter(None, [body.get("sentences")])]:
        file["content"] = texts[file["file"]]
    jsonschema.Draft202012Validator(schema.of_body(one)).validate(body)
    if example.trained:
        shared_cache.register_in_memory(asked(example), body["model"])  # it is open already
    if one.has_progress:
        _keep(result, one, example.inputs(asked(example)))
    answer = client.post(
        address.removeprefix(snippets.DEFAULT_URL),
        json=body,
        headers={"Accept": "application/vnd.apache.parquet"},
    )
    assert answer.status_code == 200, answer.text
    again, first = (
        pyarrow.parquet.read_table(io.BytesIO(content))
        for content in (answer.content, files.to_bytes(result.table(), "parquet"))
    )
    same_numbers(first.to_pandas(), again.to_pandas())
    assert first.schema.metadata == again.schema.metadata


def _keep(result: Result, one: RegisteredQuestion, subjects: tuple[Any, ...]) -> None:
    """Keep an answer that takes long where who asks the very same, of the very same, finds it."""
    values = InputValues(sentences=None, truncate=False)
    missing = one.inputs.arguments(values)[len(subjects) - one.inputs.models :] if one.inputs.files else []
    given = [*subjects, *missing]
    shared_cache.answers.cache.once((*cache_key(result.question, *given), ()), lambda: result)


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_json_reads_as_it_was_written(example: Example, asked: Asked, answers: dict[str, Result]) -> None:
    fields_of = schema.of_question(registered_questions()[snippets.url_name(example.question.analysis)])
    for one in (example.question, answers[repr(example.question)].question):
        plain = json.loads(json.dumps(one.to_json()))
        jsonschema.Draft202012Validator(fields_of).validate(plain)
        assert type(one).from_json(plain, asked(example).description) == one
        assert type(one).from_json(one.non_default_json(), asked(example).description) == one


@pytest.mark.usefixtures("folder")
def test_both_lines_can_write_csv_for_spreadsheets(minilm: Checkpoint) -> None:
    result = bert_probe.Tokens().of(minilm.trace("=1"))
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out, pytest.raises(SystemExit):
        main(shlex.split(snippets.shell(result.question, result.inputs, csv_safe=True))[1:])
    assert isinstance(out.buffer, io.BytesIO)
    exec(snippets.python(result.question, result.inputs, csv_safe=True))
    assert Path("tokens.csv").read_bytes() == out.buffer.getvalue()
    assert b"\n1,'=," in out.buffer.getvalue()


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_each_field_changes_key_address_and_provenance(example: Example, asked: Asked) -> None:
    subjects = example.inputs(asked(example))
    assert set(example.other_values) == {field.name for field in fields(example.question)}
    for name, value in example.other_values.items():
        other = replace(example.question, **{name: value})
        assert getattr(other, name) != getattr(example.question, name), name
        assert cache_key(other, *subjects) != cache_key(example.question, *subjects)
        assert other.address() != example.question.address(), name
        assert (other.to_json() == example.question.to_json()) == (name in example.idle), name
        assert repr(other) != repr(example.question), name


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_address_reads_as_it_was_written(
    example: Example, asked: Asked, answers: dict[str, Result]
) -> None:
    for one in (example.question, answers[repr(example.question)].question):
        assert type(one).from_address(one.address(), asked(example).description) == one
        assert hash(replace(one)) == hash(one)


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_a_view_file_asks_the_same(example: Example, asked: Asked, answers: dict[str, Result]) -> None:
    result = answers[repr(example.question)]
    if result.inputs.sentences and not isinstance(getattr(result, "sentences", None), tuple):
        with pytest.raises(UnavailableError, match="not available any more"):
            ViewFile.of(result)
        return
    view = read(ViewFile.of(result).to_bytes())
    assert view == ViewFile.of(result)
    assert view.asked_of(asked(example)) == result.question
    assert [model.weights_sha256 for model in view.models] == [
        model["weights_sha256"] for model in result.inputs.models
    ]
    table = ReportTable.of(result.table())
    assert ReportTable.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False))) == table
    assert table.rows == len(result.table())


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_a_result_knows_itself(example: Example, asked: Asked, answers: dict[str, Result]) -> None:
    result = answers[repr(example.question)]
    assert "\n" not in repr(result)
    assert repr(result.question) in repr(result)
    assert "<table" in result._repr_html_()
    assert result.provenance["question"] == result.question.to_json()
    assert result.provenance["weights_sha256"] == asked(example).description.weights_sha256
    assert json.dumps(result.provenance)
    assert type(result.question) is type(example.question)
    whole, table = result.joined([*result.parts()]), result.table()
    pd.testing.assert_frame_equal(whole, table)
    assert whole.attrs == table.attrs


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_a_question_says_what_it_is_asked_of(example: Example, asked: Asked, minilm: Checkpoint) -> None:
    first, *others = example.inputs(asked(example))
    if isinstance(first, list):
        pytest.skip("asked of many texts")
    wrong = minilm if isinstance(first, Trace) else minilm.trace("One two")
    with pytest.raises(SubjectError) as caught:
        example.question.of(wrong, *others)  # type: ignore[attr-defined]
    names = [type(one).__name__ for one in (example.question, first, wrong)]
    assert str(caught.value).startswith("{} is asked of a {}, and a {} was given.".format(*names))
