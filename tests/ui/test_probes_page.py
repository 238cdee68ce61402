"""Test the Probes page."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe import Probe, Relations, StructuralProbe
from bert_probe.runtime import shared_cache
from bert_probe.text.datasets import sample_treebank
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.ui import state
from bert_probe.views import matrix
from bert_probe.views.matrix import Cell
from tests.helpers.exactness import assert_repeatable
from tests.helpers.gate import prove_unless
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, url_params
from tests.helpers.treebank import SAILING, SAILING_FILE, SLEEPING, SLEEPING_FILE


def open_with_files(part: str = "layers", address: dict[str, str] | None = None, **files: str) -> AppTest:
    """Upload files to the page and return its app test."""
    app = open_page("probes", probes_part=part, **(address or {}))
    for key, content in files.items():
        app.file_uploader(key=f"probes_{key}_upload").set_value(
            (f"{key}.conllu", content.encode(), "text/plain")
        )
    return app.run()


TABLE = "text,label\n" + "".join(
    f"{noun} in the rain,wet\n{noun} at home,dry\n" for noun in ("Boats", "Cats")
)


def test_texts_of_table_are_probed() -> None:
    app = open_page("probes")
    for key in ("data", "held_out"):
        app.file_uploader(key=f"probes_{key}_upload").set_value((f"{key}.csv", TABLE.encode(), "text/csv"))
    app.run()
    assert "4 texts, 2 labels" in page_text(app)
    app.session_state["probe_pooling"] = "cls"
    app = click(app.run(), "Probe the layers")
    data = parse_labeled_texts(TABLE.encode(), "data.csv")
    expected = Probe(pooling="cls").of(shared_cache.open_checkpoint("", ""), data, data)
    assert_repeatable(app.dataframe[-1].value, expected.frame())
    assert "held-out texts" in page_text(app)
    assert "which cannot be predicted for held-out texts" in page_text(app)
    assert expected.shell in [code.value for code in app.get("code")]
    for part in ("structural_probe", "relations"):
        app.session_state["probes_part"] = part
        app.run()
        assert "upload CoNLL-U files, whose words have syntactic heads" in app.info[0].value


def click(app: AppTest, label: str) -> AppTest:
    app = next(button for button in app.button if button.label == label).click().run()
    assert not app.exception
    return app


def test_empty_page_explains_upload() -> None:
    app = open_page("probes")
    assert not app.exception
    assert "Upload sentences with tagged words" in app.info[0].value
    assert [code.value.split()[0] for code in app.code] == ["The", "text,label", "#"]


@pytest.mark.parametrize("part", prove_unless({"relations"}, ["layers", "structural_probe", "relations"]))
def test_example_shows_results_at_once(part: str) -> None:
    app = click(open_page("probes", probes_part=part), "Try an example")
    text = page_text(app)
    assert "sample\\_treebank\\.conllu: 16 sentences" in text
    assert "sample\\_treebank\\_held\\_out\\.conllu: 8 sentences" in text
    checkpoint, (data, held_out) = shared_cache.open_checkpoint("", ""), sample_treebank()
    result: Any
    if part == "relations":
        result = Relations().of(checkpoint, data, held_out)
        assert not result.left_out, "each relation of the held-out sentences is in the training data"
        assert_repeatable(app.dataframe[-1].value["accuracy"], result.table()["accuracy"])
    else:
        result = (Probe if part == "layers" else StructuralProbe)().of(checkpoint, data, held_out)
        assert result.shell in [code.value for code in app.get("code")]
    click(app, "Remove the example")
    assert "Upload sentences with tagged words" in app.info[0].value


def test_layers_are_probed() -> None:
    app = open_with_files(data=SAILING_FILE, held_out=SLEEPING_FILE)
    assert "3 sentences, 15 words" in page_text(app)
    app = click(app, "Probe the layers")
    checkpoint = shared_cache.open_checkpoint("", "")
    expected = Probe().of(checkpoint, SAILING, SLEEPING)
    frame: Any = app.dataframe[-1].value
    assert list(frame) == list(expected.frame())
    assert_repeatable(frame, expected.frame())
    assert "not what the model uses" in page_text(app)
    assert len(app.get("plotly_chart")) == 2
    app.session_state["probe_label"] = "genre"
    app = click(app.run(), "Probe the layers")
    assert "of 2 held-out sentences" in page_text(app)


def test_names_of_comments_are_escaped_and_may_be_tags() -> None:
    name = "**bold** ![i](https://example.org/i.png)"
    comments = [f"# {name} = {value}\n# tags = {value}\n" for value in "ab"]
    sentences = SLEEPING_FILE.strip().split("\n\n")
    content = "\n\n".join(a + b for a, b in zip(comments * 2, sentences * 2, strict=False)) + "\n"
    app = open_with_files(data=content)
    (control,) = [each for each in app.get("button_group") if each.proto.label == "Labels"]
    labels = [option.content for option in control.proto.options]
    assert labels[0] == "Tags of the words"
    assert "tags of the sentence" in labels
    assert [label for label in labels if "bold" in label] == [f"{state.escape(name)} of the sentence"]
    app.session_state["probe_label"] = "tags"
    assert url_params(app.run())["probe_label"] == "tags"


def test_head_opens_on_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = shared_cache.open_checkpoint("", "")
    expected = Relations().of(checkpoint, SAILING, SLEEPING)
    app = open_with_files("relations", data=SAILING_FILE)
    assert "Upload the held-out file as well" in app.info[0].value
    app = open_with_files("relations", data=SAILING_FILE, held_out=SLEEPING_FILE)
    cell = Cell(expected.relations.index("obj"), 2 * 12 + 8)
    monkeypatch.setattr(matrix, "pinned_cell", lambda *_: cell)
    app = click(app, "Evaluate the heads")
    assert_repeatable(app.dataframe[-1].value["accuracy"], expected.frame()["accuracy"])
    assert "layer 3, head 9: accuracy" in page_text(app)
    app = click(app, "Show the head's attention on this sentence")
    address = url_params(app)
    assert (address["a"], address["layer"], address["head"]) == ("Every engineer reads a map .", "3", "9")
    # [CLS] counts as the first word of the page's text, so the object, word 5 of the sentence, has index 5.
    assert (address["words"], address["pins"]) == ("1", "query.5")


def test_trees_are_probed_and_drawn() -> None:
    app = open_with_files("structural_probe", data=SAILING_FILE, held_out=SLEEPING_FILE)
    app = click(app, "Probe for trees")
    checkpoint = shared_cache.open_checkpoint("", "")
    expected = StructuralProbe().of(checkpoint, SAILING, SLEEPING)
    by_layer, edges = (frame.value for frame in app.dataframe[-2:])
    assert_repeatable(by_layer, expected.frame())
    assert "of 6 held-out edges; the baseline, which connects adjacent words, finds 83.3%" in page_text(app)
    assert "not what the model uses" in page_text(app)
    app.session_state["tree_layer"] = "3"
    app = app.run()
    assert not app.exception
    edges = app.dataframe[-1].value
    trace = checkpoint.trace(workbench_text(app))
    assert edges.to_csv() == expected.tree(trace, 3).table().to_csv()
    words = sum(any(map(str.isalnum, word)) for word in trace.encoding.text.replace(".", " .").split())
    assert len(edges) == words - 1
    assert len(app.get("plotly_chart")) == 2


def workbench_text(app: AppTest) -> str:
    text: str = app.session_state["request"].a
    return text


def test_sentence_without_tree_keeps_other_results() -> None:
    app = open_with_files("structural_probe", data="1\tGo\t_\tVERB" + "\t_" * 6 + "\n")
    assert "Trees need a treebank" in app.info[0].value
    app = click(open_with_files("structural_probe", {"a": HOSTILE}, data=SAILING_FILE), "Probe for trees")
    markdown = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    assert not any(piece in markdown for piece in ("<img", "**bold**", ":red[no]", "](http"))
    app.session_state["draft_a"] = "Go!"
    app = click(app, "Run")
    assert "A tree needs at least two words" in app.info[-1].value
    assert len(app.dataframe) == 1


def test_unreadable_files_are_reported_and_hostile_files_are_text() -> None:
    app = open_with_files(data="1\tword\n")
    assert "data.conllu has an error: line 1: the line has 2 tab-separated columns" in error_text(app)
    app = open_with_files("relations", data=SAILING_FILE, held_out="\n")
    assert "held_out.conllu has no sentences" in error_text(app)
    hostile = HOSTILE.replace(" ", "_")
    content = SAILING_FILE.replace("\tdet\t", f"\t{hostile}\t").replace("\tThe\t", f"\t{hostile}\t")
    app = click(open_with_files("relations", data=content, held_out=content), "Evaluate the heads")
    markdown = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    assert not any(piece in markdown for piece in ("<img", "**bold**", ":red[no]", "](http"))
