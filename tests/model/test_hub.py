"""Test downloads from a local server that imitates the hub."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

import bert_probe
from bert_probe import ModelSizes, open_config
from bert_probe.cli import options, tokens
from bert_probe.cli.main import main
from bert_probe.errors import (
    CheckpointError,
    NetworkError,
    NotFoundError,
    PickledWeightsError,
    WeightsError,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import _progress_bar_class, locate
from tests.helpers.families import TEXT
from tests.helpers.hub import COMMIT, REPOSITORY, Hub, pull_request, serve_hub


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Point the hub client to a local server, with an empty cache."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    def point(endpoint: str) -> None:
        assert endpoint.startswith("http://127.0.0.1:")
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        huggingface_hub.close_session()

    return point


@pytest.fixture
def hub(online: Callable[[str], None], family_folder: Callable[[str], Path]) -> Iterator[Hub]:
    folder = family_folder("bert")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    # Files that must not be downloaded: pickles, code, other formats.
    files |= {
        "pytorch_model.bin": b"x" * 99,
        "modeling_evil.py": b"raise SystemExit",
        "onnx/model.onnx": b"y",
    }
    hub = Hub(files)
    with serve_hub(hub) as endpoint:
        online(endpoint)
        yield hub
        huggingface_hub.close_session()


def test_downloaded_model_has_name_and_commit(hub: Hub, family: Callable[[str], Checkpoint]) -> None:
    checkpoint = bert_probe.load(REPOSITORY)
    description = checkpoint.description
    assert (description.name, description.origin, description.revision) == (REPOSITORY, "hub", COMMIT)
    assert description.weights_sha256 == family("bert").description.weights_sha256
    np.testing.assert_array_equal(
        checkpoint.trace(TEXT).hidden_states, family("bert").trace(TEXT).hidden_states
    )
    assert set(hub.requested_files) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_downloaded_model_opens_again_offline(hub: Hub, online: Callable[[str], None]) -> None:
    first = bert_probe.load(REPOSITORY)
    request_count = len(hub.requested_files)
    online("http://127.0.0.1:9")
    again = bert_probe.load(REPOSITORY)
    assert again.description == first.description
    assert len(hub.requested_files) == request_count


def test_open_config_downloads_only_the_config(hub: Hub, online: Callable[[str], None]) -> None:
    first = open_config(f"{REPOSITORY}@v1")
    assert (first.name, first.origin, first.revision) == (REPOSITORY, "hub", COMMIT)
    assert set(hub.requested_files) == {"config.json"}
    online("http://127.0.0.1:9")
    assert open_config(f"{REPOSITORY}@{COMMIT}") == first
    sizes = ModelSizes().of(first)
    assert sizes.shell == f"bert-probe parameters --config {REPOSITORY}@{COMMIT}"
    assert f"open_config('{REPOSITORY}@{COMMIT}')" in sizes.python


@pytest.mark.gate(cases=1)
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("revision", ["main", "v1", COMMIT])
def test_revision_is_opened_by_branch_tag_or_commit(revision: str) -> None:
    assert bert_probe.load(REPOSITORY, revision=revision).description.revision == COMMIT


def test_progress_counts_all_bytes(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    reports: list[tuple[int, int]] = []
    locate(REPOSITORY, progress=lambda done, total: reports.append((done, total)))
    size = sum(len(hub.files[name]) for name in set(hub.requested_files))
    assert reports[-1] == (size, size)
    done = [step[0] for step in reports]
    assert done == sorted(done)
    assert all(0 < step <= total for step, total in reports)
    assert "Downloading bytes" not in capfd.readouterr().err, "the caller's progress replaces the bar"


@pytest.mark.parametrize("command", ["tokens", "attention"])
def test_command_shows_a_progress_bar_for_downloads(
    command: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[int, int]] = []

    @contextmanager
    def bar(label: str, unit: str) -> Iterator[Progress]:
        assert (label, unit) == ("Downloading", "B")
        yield lambda done, total: reports.append((done, total))

    for module in (options, tokens):
        monkeypatch.setattr(module, "terminal_bar", bar)
    with pytest.raises(SystemExit) as ended:
        main([command, "a", "--model", REPOSITORY])
    assert ended.value.code == 0
    assert 0 < reports[-1][0] == reports[-1][1] <= sum(map(len, hub.files.values()))


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["someone/else", "nobody/at-all", "no-such-model"])
def test_unknown_hub_model_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError, match=f"The hub has no public model {name}. Check the spelling"):
        bert_probe.load(name)


@pytest.mark.usefixtures("hub")
def test_unknown_revision_is_not_found() -> None:
    with pytest.raises(NotFoundError, match=f"{REPOSITORY} has no revision v9. Check the branch"):
        bert_probe.load(REPOSITORY, revision="v9")


def test_gated_model_error_explains_access(hub: Hub) -> None:
    hub.fails = dict.fromkeys(hub.files, (403, "GatedRepo"))
    with pytest.raises(NetworkError, match=f"{REPOSITORY} is gated. Request access"):
        bert_probe.load(REPOSITORY)


def test_http_error_is_reported_with_its_status(hub: Hub) -> None:
    hub.fails = {"model.safetensors": (403, "")}
    with pytest.raises(NetworkError, match=r"the hub answered with HTTP status 403"):
        bert_probe.load(REPOSITORY)


def test_model_with_only_a_pickle_is_not_downloaded(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(WeightsError, match=r"model\.safetensors is missing"):
        bert_probe.load(REPOSITORY)
    assert "pytorch_model.bin" not in hub.requested_files


@pytest.mark.parametrize(
    ("changes", "parent", "reference"),
    [
        ({}, COMMIT, "refs/pr/5"),
        ({"author": {"name": "someone-else"}}, COMMIT, None),
        ({"title": "Better weights"}, COMMIT, None),
        ({}, "e" * 40, None),
    ],
    ids=["by the bot", "by someone else", "other title", "of older weights"],
)
def test_revision_of_the_conversion_bot_is_offered(
    changes: dict[str, object], parent: str, reference: str | None, hub: Hub
) -> None:
    del hub.files["model.safetensors"]
    hub.discussions = [pull_request(5, **changes)]
    hub.conversion_parent = parent
    with pytest.raises(PickledWeightsError) as caught:
        bert_probe.load(REPOSITORY)
    start = "model.safetensors is missing, and no other format of weights is supported. "
    offer = (
        f"The hub has a converted copy: pass the revision {reference}. Or convert"
        if reference
        else "If the model has only a pickle (pytorch_model.bin), convert"
    )
    end = f" the pickle with bert-probe convert {REPOSITORY} --out FOLDER."
    assert str(caught.value) == start + offer + end
    assert (caught.value.model, caught.value.converted_revision) == (REPOSITORY, reference)


def test_unreachable_hub_is_network_error(online: Callable[[str], None]) -> None:
    online("http://127.0.0.1:9")
    with pytest.raises(NetworkError, match=r"the hub cannot be reached\. Check the network, or use the path"):
        bert_probe.load(REPOSITORY)


def test_offline_mode_is_a_network_error_that_names_the_revision() -> None:
    assert constants.HF_HUB_OFFLINE
    with pytest.raises(NetworkError, match=r"no-such-model at revision v1 is not a folder here"):
        bert_probe.load("no-such-model", revision="v1")


def test_interrupted_download_raises_error_and_resumes(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    hub.cuts["model.safetensors"] = 1_000
    with pytest.raises(CheckpointError):
        bert_probe.load(REPOSITORY, progress=no_progress)
    assert capfd.readouterr().err == ""
    hub.fails.clear()
    assert bert_probe.load(REPOSITORY).description.revision == COMMIT


def test_full_disk_is_not_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        bert_probe.load(REPOSITORY)
    assert not isinstance(caught.value, NetworkError)


def test_progress_reports_only_bytes_written_to_disk() -> None:
    reports: list[tuple[int, int]] = []
    bar = _progress_bar_class(lambda done, total: reports.append((done, total)))
    with (
        bar(total=9, unit="B", name="huggingface_hub.snapshot_download.transfer") as received,
        bar(total=10, unit="B", name="huggingface_hub.snapshot_download") as disk_bar,
        bar(total=4, desc="Fetching 4 files") as files,
    ):
        received.update(9)
        files.update(1)
        disk_bar.update(3)
        disk_bar.update(7)
    assert reports == [(3, 10), (10, 10)]
