"""Test that commands derived from questions print the tables of the library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import bert_probe
from bert_probe.cli.lazy_commands import build, derived_commands
from bert_probe.cli.main import COMMANDS, CORPUS_COMMANDS, commands
from bert_probe.core import files
from bert_probe.core.evaluation_inputs import EvaluationFiles, JudgedQueries
from bert_probe.core.inputs import (
    DocumentFile,
    Documents,
    Files,
    Inputs,
    ManyTraces,
    OneCheckpoint,
    OneOrTwoTraces,
    OneTrace,
    SentenceList,
    TwoCheckpoints,
    TwoModelSentences,
    TwoModelTraces,
    TwoTraces,
)
from bert_probe.core.question import Question
from bert_probe.core.result import Result
from bert_probe.corpus.vector_files import DocumentVectors
from bert_probe.corpus.vector_search import ELSEWHERE
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.changed import changed_checkpoint
from tests.helpers.command_line import bert_probe as run

Models = tuple[Checkpoint, Checkpoint]

HAND_WRITTEN = {*COMMANDS, *(f"corpus {name}" for name in CORPUS_COMMANDS)}
DERIVED = sorted(derived_commands().keys() - HAND_WRITTEN)
QUESTIONS: list[type[Question]] = [
    value
    for value in (getattr(bert_probe, name) for name in bert_probe.__all__)
    if isinstance(value, type) and issubclass(value, Question) and value is not Question
]

A, B = "we left the river at night", "we left the river at noon"
SENTENCES = ["we left", "the river at night", "a boat", "the small boat came back"]
LABELED = "text,label\n" + "".join(f"{text},{number % 2}\n" for number, text in enumerate(SENTENCES))
TAGGED = "we PRON\nleft VERB\n\nthe DET\nriver NOUN\n\na DET\nboat NOUN\n\nthe DET\nboat NOUN\nleft VERB\n"

VECTORS = "".join(f'{{"id": "{row}", "vector": {[row + 1, 2] * 192}}}\n' for row in range(4))
SCORED = "text_a,text_b,score\n" + "".join(
    f"{first},{second},{(row * column) % 5}\n"
    for row, first in enumerate(SENTENCES)
    for column, second in enumerate(SENTENCES)
)
JUDGED = {
    "corpus.jsonl": "".join(f'{{"_id": "{row}", "text": "{text}"}}\n' for row, text in enumerate(SENTENCES)),
    "queries.jsonl": '{"_id": "q", "text": "a small boat"}\n{"_id": "r", "text": "the river"}\n',
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq\t2\t1\nq\t3\t1\nr\t1\t1\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write files of sentences, labeled texts and tagged sentences into a folder, and change to it."""
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    Path("labeled.csv").write_text(LABELED, encoding="utf-8")
    Path("tagged.conll").write_text(TAGGED, encoding="utf-8")
    Path("held_out.conll").write_text(TAGGED, encoding="utf-8")
    Path("scored.csv").write_text(SCORED, encoding="utf-8")
    Path("vectors.jsonl").write_text(VECTORS, encoding="utf-8")
    Path("judged").mkdir()
    for name, content in JUDGED.items():
        (Path("judged") / name).write_text(content, encoding="utf-8")
    return tmp_path


@pytest.fixture
def models(trained_on: Callable[[str, str], Checkpoint]) -> Models:
    """Return a tiny BERT and a copy with changed weights, as before and after training."""
    before = trained_on("bert", "fill-mask")
    return before, changed_checkpoint(before)


def names_of_all_commands() -> set[str]:
    """Return the names of all commands, including those in command groups."""
    context = click.Context(commands)
    names = {*commands.list_commands(context), *HAND_WRITTEN}
    diff = commands.get_command(context, "diff")
    assert isinstance(diff, click.Group)
    return names | {f"diff {name}" for name in diff.list_commands(context)}


def test_every_public_question_has_exactly_one_command() -> None:
    questions = defaultdict(set)
    for question in QUESTIONS:
        questions[question.command].add(question.__name__)
    groups = {"app", "ask", "check", "convert", "corpus", "diff", "mcp", "report", "verify"}
    assert names_of_all_commands() - groups == {*questions, "corpus verify"}
    assert questions["search"] == {"Search", "VectorSearch"}, "a file of vectors selects the second question"
    for name in {*DERIVED} - {"search"}:
        assert questions[name] == {derived_commands()[name].class_name}


def test_command_of_a_private_name_or_a_group_is_unknown() -> None:
    for words in (["diff", "compare"], ["diff heads"], ["layers"], ["corpus", "heads-of"]):
        assert f"No such command '{words[-1]}'" in run(*words).refusal


@pytest.mark.parametrize("name", DERIVED)
def test_derived_command_has_the_common_options_and_the_listed_summary(name: str) -> None:
    derived = derived_commands()[name]
    command = build(name, derived)
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--out", "--force", "--csv-safe", "--save-view", "--dtype", "--truncate"} <= options
    assert command.name == name.rpartition(" ")[2]
    line = click.Command(name, help=derived.summary).get_short_help_str(1000)
    assert command.get_short_help_str(1000) == line
    assert "`" not in line


Answer = Callable[[Checkpoint], Result]
OF_ONE_MODEL: list[tuple[type[Inputs], list[str], Answer]] = [
    (OneTrace, ["embeddings", A], lambda model: bert_probe.HiddenStates().of(model.trace(A))),
    (OneTrace, ["pooler", A, "--pair", B], lambda model: bert_probe.Pooler().of(model.trace(A, B))),
    (
        OneTrace,
        ["ablate", A, "--heads", "2.5,2.6"],
        lambda model: bert_probe.HeadAblation([(1, 4), (1, 5)]).of(model.trace(A)),
    ),
    (
        DocumentFile,
        ["audit", "sentences.txt", "--limit", "8"],
        lambda model: bert_probe.TruncationAudit(8).of(model, SENTENCES),
    ),
    (OneOrTwoTraces, ["map", A], lambda model: bert_probe.TokenMap().of(model.trace(A))),
    (OneOrTwoTraces, ["map", A, B], lambda model: bert_probe.TokenMap().of(model.trace(A), model.trace(B))),
    (OneOrTwoTraces, ["map", A, "--pair", B], lambda model: bert_probe.TokenMap().of(model.trace(A, B))),
    (
        TwoTraces,
        ["compare", A, B, "--words"],
        lambda model: bert_probe.MinimalPair(words=True).of(model.trace(A), model.trace(B)),
    ),
    (
        TwoTraces,
        ["patch", A, B, "--pair-a", "it", "--pair-b", "us"],
        lambda model: bert_probe.ActivationPatching().of(model.trace(A, "it"), model.trace(B, "us")),
    ),
    (
        ManyTraces,
        ["padding", "--text", A, "--text", "it"],
        lambda model: bert_probe.PaddingEffect().of(model.traces([A, "it"])),
    ),
    (
        EvaluationFiles,
        ["evaluate-sts", "scored.csv"],
        lambda model: bert_probe.SimilarityEvaluation().of(
            model, bert_probe.read_labeled_texts("scored.csv")
        ),
    ),
    (
        JudgedQueries,
        ["evaluate-retrieval", "judged"],
        lambda model: bert_probe.RetrievalEvaluation().of(model, *bert_probe.read_retrieval_data("judged")),
    ),
    (OneCheckpoint, ["baseline"], lambda model: bert_probe.SimilarityBaseline().of(model)),
    (
        OneCheckpoint,
        ["neighbors", "--token", "river", "--count", "3"],
        lambda model: bert_probe.Neighbors("river", 3).of(model),
    ),
    (
        SentenceList,
        ["head-means", "sentences.txt", "--resamples", "20"],
        lambda model: bert_probe.HeadMeans(resamples=20).of(model, SENTENCES),
    ),
    (
        SentenceList,
        ["sentences", "labeled.csv", "--column", "text", "--show", "nearest", "--count", "2"],
        lambda model: bert_probe.Sentences(show="nearest", count=2).of(model, SENTENCES),
    ),
    (
        SentenceList,
        ["corpus-map", "sentences.txt"],
        lambda model: bert_probe.CorpusTokenMap().of(model, SENTENCES),
    ),
    (
        SentenceList,
        ["corpus-map", "--labeled", "labeled.csv"],
        lambda model: bert_probe.CorpusTokenMap().of(model, bert_probe.read_labeled_texts("labeled.csv")),
    ),
    (
        Documents,
        ["search", "small boats", "--documents", "labeled.csv", "--scorers", "bi-encoder,bm25"],
        lambda model: bert_probe.Search("small boats", ["bi-encoder", "bm25"]).of(model, SENTENCES),
    ),
    (
        Documents,
        ["search", "--documents", "sentences.txt", "--count", "2", "--", "--boats"],
        lambda model: bert_probe.Search("--boats", count=2).of(model, SENTENCES),
    ),
    (
        DocumentVectors,
        ["search", "small boats", "--documents", "vectors.jsonl"],
        lambda model: bert_probe.VectorSearch("small boats").of(
            model, bert_probe.read_vectors("vectors.jsonl")
        ),
    ),
    (
        Files,
        ["probe", "tagged.conll", "--held-out", "held_out.conll", "--layers", "1"],
        lambda model: bert_probe.Probe(layers=[1]).of(
            model, *map(bert_probe.read_tagged_sentences, ("tagged.conll", "held_out.conll"))
        ),
    ),
    (
        Files,
        ["probe", "labeled.csv", "--layers", "1", "--held-out", "labeled.csv"],
        lambda model: bert_probe.Probe(layers=[1]).of(
            model, *map(bert_probe.read_labeled_texts, ("labeled.csv", "labeled.csv"))
        ),
    ),
]

OF_TWO_MODELS: list[tuple[type[Inputs], list[str], Callable[[Models], Result]]] = [
    (TwoCheckpoints, ["parameters"], lambda both: bert_probe.ParameterChange().of(*both)),
    (
        TwoModelTraces,
        ["vectors", A, "--pair", B],
        lambda both: bert_probe.VectorChange().of(*(model.trace(A, B) for model in both)),
    ),
    (
        TwoModelSentences,
        ["layers", "sentences.txt"],
        lambda both: bert_probe.LayerSimilarity().of(*both, SENTENCES),
    ),
]


def test_every_type_of_inputs_has_a_case() -> None:
    kinds = {type(question.inputs) for question in QUESTIONS if question.command in DERIVED}
    assert kinds == {kind for kind, *_ in [*OF_ONE_MODEL, *OF_TWO_MODELS]}


@pytest.mark.gate(cases=8)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "words", "answer"), OF_ONE_MODEL, ids=[" ".join(words) for _, words, _ in OF_ONE_MODEL]
)
def test_command_prints_the_table_of_python(
    kind: type[Inputs], words: list[str], answer: Answer, minilm: Checkpoint
) -> None:
    result = answer(minilm)
    assert type(result.question.inputs) is kind
    ended = run(*words, built_in=minilm)
    notes = f"bert-probe: {ELSEWHERE}\n" if kind is DocumentVectors else ""
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), notes)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "words", "answer"), OF_TWO_MODELS, ids=[" ".join(words) for _, words, _ in OF_TWO_MODELS]
)
def test_command_on_two_models_prints_the_table_of_python(
    kind: type[Inputs], words: list[str], answer: Callable[[Models], Result], models: Models
) -> None:
    result = answer(models)
    assert type(result.question.inputs) is kind
    by_name = {model.description.name: model for model in models}
    ended = run("diff", words[0], *by_name, *words[1:], checkpoints=by_name)
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), "")


@pytest.mark.usefixtures("folder")
def test_slow_question_shows_progress(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:

    labels, steps = [], []

    class Bar:
        def __init__(self, label: str, unit: str) -> None:
            labels.append((label, unit))

        def __enter__(self) -> Callable[[int, int], None]:
            return lambda done, total: steps.append((done, total))

        def __exit__(self, *_error: Any) -> None:
            pass

    monkeypatch.setattr("bert_probe.runtime.terminal.terminal_bar", Bar)
    assert run("sentences", "sentences.txt", built_in=minilm).status == 0
    assert labels == [("Reading", "B"), ("Sentences", "steps")]
    assert steps[-1] == (len(SENTENCES), len(SENTENCES))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["embeddings"], "Missing argument 'TEXT'. See bert-probe --help."),
        (["embeddings", A, B], "unexpected extra argument"),
        (["embeddings", ""], "is empty"),
        (["embeddings", A, "--pair", ""], "Sentence B is empty"),
        (
            ["embeddings", "word " * 600],
            "The text has 602 tokens, but this model accepts at most 512. Shorten the text, or add "
            "--truncate.",
        ),
        (["map"], "Missing argument 'TEXT_A'"),
        (["map", A, B, "--pair", "it"], "TEXT_B and --pair cannot be combined. Omit one of the two."),
        (
            ["overview", A, B, "--pair", "it"],
            "TEXT_B and --pair cannot be combined. Omit one of the two.",
        ),
        (["compare", A], "Missing argument 'TEXT_B'"),
        (["patch", A, B, "--pair-a", ""], "Sentence B is empty"),
        (["padding"], "Missing option '--text'"),
        (["baseline", A], "unexpected extra argument"),
        (["neighbors"], "Missing option '--token'"),
        (["head-means"], "Missing argument 'FILE'"),
        (["head-means", "nowhere.txt"], "nowhere.txt cannot be opened: No such file"),
        (["head-means", "."], ". cannot be opened: Is a directory"),
        (["corpus-map"], "Pass a FILE of sentences, or a table of labeled texts with --labeled."),
        (
            ["corpus-map", "sentences.txt", "--labeled", "labeled.csv"],
            "FILE and --labeled cannot be combined. Omit one of the two.",
        ),
        (
            ["corpus-map", "--labeled", "labeled.csv", "--column", "text"],
            "--column applies to FILE only. Omit --column.",
        ),
        (["corpus-map", "--labeled", "nowhere.csv"], "nowhere.csv cannot be opened"),
        (["probe"], "Missing argument 'DATA'"),
        (["probe", "nowhere.conll"], "nowhere.conll cannot be opened"),
        (["probe", "tagged.conll", "--held-out", "nowhere.conll"], "nowhere.conll cannot be opened"),
        (["trees", "labeled.csv"], "labeled.csv"),
        (["relations", "tagged.conll"], "Missing argument 'REPORTED'"),
    ],
)
def test_missing_or_contradictory_inputs_are_refused(
    words: list[str], reason: str, minilm: Checkpoint
) -> None:
    refusal = run(*words, built_in=minilm).refusal
    assert reason in refusal
    assert refusal.endswith(".")
