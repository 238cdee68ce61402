"""Test pickled weights that attack the reader: none of their code runs, and the error states the cause."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from bert_probe.conversion import child, convert
from bert_probe.errors import OutOfMemoryError, WeightsError
from tests.helpers import pickles
from tests.helpers.gate import prove_unless


def converted(path: Path, **tied: str) -> dict[str, torch.Tensor]:
    """Convert a pickled file in this process, and return its tensors."""
    target = io.BytesIO()
    child.convert_file(path, target, tied, lambda _: None)
    return load(target.getvalue())


def in_process(path: Path, seconds: float | None = 60) -> None:
    """Convert a pickled file in the sandboxed process."""
    setup = child.FileSetup(source=str(path), target=str(path.with_suffix(".safetensors")), tied={})
    convert._run([setup], seconds, lambda *_: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pytorch_model.bin"


@pytest.mark.parametrize("form", ["zip", "plain", "legacy"])
@pytest.mark.parametrize("name", prove_unless(pickles.SEED, pickles.GADGETS))
def test_global_is_refused_by_name(name: str, form: str, path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = pickles.GADGETS[name].replace(b"{mark}", bytes(mark))
    forms = {
        "zip": pickles.zipped(content),
        "plain": content,
        "legacy": pickles.LEGACY_START + content,
    }
    path.write_bytes(forms[form])
    with pytest.raises(WeightsError) as caught:
        converted(path)
    assert f"pytorch_model.bin refers to {name}, which is not needed to store weights" in str(caught.value)
    assert str(caught.value).endswith(
        "No code from the file was executed. Use other weights, and report the file to its publisher."
    )
    assert not mark.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("is_zip", [True, False])
def test_global_is_named_in_every_protocol(is_zip: bool, protocol: int, path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, tuple[bytes]]:
            return pickle.loads, (b"x",)

    content = pickle.dumps({"w": Attack()}, protocol)
    path.write_bytes(pickles.zipped(content) if is_zip else content)
    with pytest.raises(WeightsError, match=r"refers to _?pickle\.loads, which"):
        converted(path)


@pytest.mark.parametrize("name", pickles.GADGETS)
def test_torch_refuses_dangerous_globals_itself(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without BERT Probe's own check, torch's unpickler refuses globals that may run code."""
    if child_allows(name):
        pytest.skip("harmless: torch allows it")
    monkeypatch.setattr(child, "check_pickles", lambda _: None)
    path.write_bytes(pickles.zipped(pickles.GADGETS[name]))
    with pytest.raises(WeightsError, match=r"refers to|is broken or does not contain weights"):
        converted(path)


def child_allows(name: str) -> bool:
    return name in torch._weights_only_unpickler._get_allowed_globals()


@pytest.mark.gate(cases=14)
@pytest.mark.parametrize("case", prove_unless(lambda case: case != "many instructions", pickles.HOSTILE))
def test_hostile_file_is_refused(case: str, path: Path) -> None:
    make, message = pickles.HOSTILE[case]
    path.write_bytes(make())
    with pytest.raises((WeightsError, OutOfMemoryError)) as caught:
        converted(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith("pytorch_model.bin ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", prove_unless(["storage beyond its record"], pickles.HOSTILE))
def test_hostile_file_is_refused_by_the_process(case: str, path: Path) -> None:
    make, message = pickles.HOSTILE[case]
    path.write_bytes(make())
    with pytest.raises((WeightsError, OutOfMemoryError)) as caught:
        in_process(path)
    assert message in str(caught.value)


@pytest.mark.prove
def test_endless_pickle_is_ended(path: Path) -> None:
    path.write_bytes(pickles.zipped(pickles.ENDLESS))
    with pytest.raises(WeightsError, match=r"took longer than 1 seconds|ended unexpectedly"):
        in_process(path, seconds=1)


# ---------------------------------------------------------------- allowed pickles


@pytest.mark.parametrize("save", [pickles.saved, pickles.legacy])
def test_weights_are_converted_exactly(save: object, path: Path) -> None:
    base = torch.arange(24.0)
    state = OrderedDict(
        {dtype_name: torch.ones(3).to(dtype) for dtype, dtype_name in child.DTYPES.items()}
        | {
            "transposed": base.reshape(4, 6).T,
            "slice": base[3:9:2],
            "scalar": torch.tensor(3.5),
            "empty": torch.zeros(0, 4),
            "parameter": torch.nn.Parameter(torch.tensor([1.0, float("nan"), float("-inf"), -0.0])),
            "名 \U0001f600": torch.ones(2),
        }
    )
    path.write_bytes(save(state))  # type: ignore[operator]
    tensors = converted(path)
    assert tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(tensors[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_attributes_of_a_state_dict_are_ignored(path: Path) -> None:
    class State:
        def __reduce__(self) -> tuple[object, ...]:
            return OrderedDict, (), {"items": OrderedDict}, None, iter([("weight", torch.ones(3))])

    path.write_bytes(pickles.saved(State()))
    assert converted(path).keys() == {"weight"}


@pytest.mark.parametrize("save", [pickles.saved, pickles.legacy])
def test_tied_weights_are_written_once(save: object, path: Path) -> None:
    shared, other = torch.randn(5, 3), torch.randn(5)
    path.write_bytes(save({"decoder": shared, "embeddings": shared, "a": other, "b": other}))  # type: ignore[operator]
    tied = {"decoder": "embeddings", "a": "missing", "missing": "b"}
    tensors = converted(path, **tied)
    assert tensors.keys() == {"embeddings", "a", "b"}
    assert torch.equal(tensors["embeddings"], shared)
    assert torch.equal(tensors["a"], tensors["b"])


def test_equal_weights_that_are_not_shared_are_both_written(path: Path) -> None:
    path.write_bytes(pickles.saved({"decoder": torch.ones(3), "embeddings": torch.ones(3)}))
    assert converted(path, decoder="embeddings").keys() == {"decoder", "embeddings"}
