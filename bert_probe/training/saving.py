"""Reserve a model folder before training, and write it completely or not at all.

A folder that this program wrote lists its files with their SHA-256 in ``bert_probe.json``. Only such folders
are replaced, and only if they contain exactly these files, apart from tuned lenses for the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import save_file

from bert_probe.analyses.outputs.tuned_lens import lens_files
from bert_probe.core.writing import is_reserved, locked
from bert_probe.errors import CheckpointError, ExportError, WrittenElsewhereError
from bert_probe.model.checkpoint import HISTORY_FILE
from bert_probe.model.preflight import format_bytes
from bert_probe.model.sentence_modules import TOKENS, SentenceModel
from bert_probe.model.sentence_router import MODEL_FILE, MODULES_FILE
from bert_probe.model.sources import read_json

_PART, _OLD = ".part", ".old"
_NAME_BYTES = 200
"""Maximum number of bytes of the model folder's name that the name of a temporary folder contains."""


@contextmanager
def reserve_folder(target_folder: Path, replaces: bool) -> Iterator[None]:
    """Reserve a folder for the duration of the block, in which `write_folder` may write to it.

    Enter the block before training, so that an unwritable folder fails early.

    Raises:
        ExportError: another process is writing to this folder, the folder cannot be written, or it exists and
            must not be replaced.
    """
    with _locked(target_folder, replaces, reserve=True):
        yield


@contextmanager
def _locked(target_folder: Path, replaces: bool, reserve: bool) -> Iterator[Path]:
    """Lock a folder for the duration of the block; yield its path with all symbolic links resolved."""
    with ExitStack() as stack:
        with _system_errors(target_folder):
            real = _target(target_folder)
            is_checked = is_reserved(real)
            if not is_checked:
                _check_parent(target_folder, real)
            stack.enter_context(locked([real], reserve))
            if not is_checked:
                _check_replaceable(target_folder, real, replaces)
        yield real


def check_space(target_folder: Path, size: int) -> None:
    """Check that the disk has enough free space for a folder of about `size` bytes.

    Raises:
        ExportError: the disk has too little free space.
    """
    with _system_errors(target_folder):
        free = shutil.disk_usage(_target(target_folder).parent).free
    if free < size:
        raise ExportError(
            f"{target_folder} needs about {format_bytes(size)}, but only {format_bytes(free)} are free "
            "on the disk. Free some space, or choose another folder."
        )


def _target(target_folder: Path) -> Path:
    """Return the path of a folder with all symbolic links resolved."""
    real = Path(os.path.realpath(target_folder))
    with suppress(FileNotFoundError):
        os.lstat(real)  # raises an error if the name is too long or a parent is a file
    if real.is_symlink():
        raise ExportError(
            f"{target_folder} is a symbolic link that forms a loop. Remove the link, or choose another name."
        )
    try:
        str(real).encode()
    except UnicodeEncodeError:
        raise ExportError(
            f"The path {str(real)!a} is not UTF-8, so models cannot be saved there. Choose another path."
        ) from None
    return real


def _check_parent(target_folder: Path, real: Path) -> None:
    parent = real.parent
    if not parent.is_dir():
        raise ExportError(f"There is no folder {parent}. Create this folder, or choose another path.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"{parent} is not writable. Choose another path.")
    if os.path.ismount(real):  # a mount point cannot be renamed, so it cannot be replaced
        raise ExportError(f"{target_folder} is a mount point. Choose a folder inside the mount point.")


def _check_replaceable(target_folder: Path, real: Path, replaces: bool) -> None:
    if not real.exists():
        return
    if not real.is_dir():
        raise ExportError(f"{target_folder} is a file, not a folder. Choose another name.")
    if not any(real.iterdir()):
        return
    if not replaces:
        raise ExportError(f"{target_folder} already exists. Choose another name, or replace it with --force.")
    _own_files(target_folder, real)


def _own_files(target_folder: Path, folder: Path) -> list[Path]:
    """Return the files of a folder if this program wrote all of them: a model and its tuned lenses.

    Args:
        target_folder: name of the folder in error messages.

    Raises:
        ExportError: the folder contains other files; the message names the first one.
    """
    files, lenses = _sealed(folder), lens_files(folder)
    folders = {parent for name in files for parent in (folder / name).parents}
    results = []
    for above, below, names in os.walk(folder, onerror=_raise):
        below.sort()
        for path in (Path(above, name) for name in sorted([*below, *names])):
            name = path.relative_to(folder).as_posix()
            if path in lenses and not path.is_symlink():
                results.append(path)
                continue
            if path.is_symlink() or not (
                path in folders if path.is_dir() else name in files or name == HISTORY_FILE
            ):
                raise _not_replaced(target_folder, f"{name} was not saved by BERT Probe")
            # Only regular files are hashed, because opening a pipe would wait for a writer.
            if name in files and not (path.is_file() and _digest(path) == files[name]):
                raise _not_replaced(target_folder, f"{name} has changed since BERT Probe saved it")
            if name in files or name == HISTORY_FILE:
                results.append(path)
    if not files:  # HISTORY_FILE is missing or lists no files
        raise _not_replaced(target_folder, f"{HISTORY_FILE} does not contain the list of the model's files")
    return results


def _not_replaced(target_folder: Path, reason: str) -> ExportError:
    return ExportError(
        f"{target_folder} is not replaced, because {reason}. Only a model that BERT Probe saved and that "
        "has not changed since is replaced. Choose another name."
    )


def _raise(error: OSError) -> None:
    raise error


def _sealed(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digests in a folder's `HISTORY_FILE`, by file name; {} if the list is invalid."""
    try:
        files = read_json(folder / HISTORY_FILE)["files"]
    except (CheckpointError, OSError, KeyError, TypeError):
        return {}
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        return {}
    return files


def _seal(folder: Path) -> None:
    """Add the list of a folder's files and their SHA-256 digests to its `HISTORY_FILE`."""
    metadata = read_json(folder / HISTORY_FILE) if (folder / HISTORY_FILE).is_file() else {}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / HISTORY_FILE)
    metadata["files"] = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    (folder / HISTORY_FILE).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_leftovers(target_folder: Path) -> list[str]:
    """Return a message for each temporary folder that a killed process left next to a model folder."""
    results = []
    with suppress(OSError, ValueError):
        real = Path(os.path.realpath(target_folder))
        for path in sorted(real.parent.glob(f"{_escaped(_prefix(real))}.*")):
            if path.suffix == _PART:
                results.append(
                    f"{path} is incomplete, because the process that wrote it was terminated. Delete this "
                    "folder."
                )
            elif path.suffix == _OLD and target_folder.exists():
                results.append(f"{path} is the previous content of {target_folder}. Delete this folder.")
            elif path.suffix == _OLD:
                results.append(
                    f"{path} is the previous content of {target_folder}, which is missing. Rename "
                    f"this folder to {real.name}."
                )
    return results


def _prefix(target_folder: Path) -> str:
    """Return the name prefix of the temporary folders for a model folder."""
    return f".{os.fsencode(target_folder.name)[:_NAME_BYTES].decode(errors='ignore')}"


def _escaped(name: str) -> str:
    """Return a glob pattern that matches only the file name `name`."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def write_folder(target_folder: Path, fill: Callable[[Path], None], replaces: bool = False) -> None:
    """Create a folder, or replace an existing one, completely or not at all.

    If the path is a symbolic link, the target of the link is written.

    Args:
        target_folder: path of the folder.
        fill: function that writes the files into an empty folder.
        replaces: whether a model that BERT Probe saved, and that has not changed since, may be replaced.
            An empty folder is always replaced.

    Raises:
        ExportError: the folder cannot be written; an existing folder is unchanged.
        WrittenElsewhereError: only the last step, moving the complete folder to its path, fails. The folder
            remains next to the path, and the message names the folder.
    """
    with _locked(target_folder, replaces, reserve=False) as real, _system_errors(target_folder):
        token = secrets.token_hex(6)
        part, old = (real.with_name(f"{_prefix(real)}.{token}{end}") for end in (_PART, _OLD))
        try:
            part.mkdir()
            fill(part)
            _seal(part)
            _sync(part)
            try:
                _publish(part, old, target_folder, real, replaces)
            except (ExportError, OSError) as error:
                rescued = real.with_name(f"{real.name[: _NAME_BYTES // 4]}-{token}")
                part.replace(rescued)
                reason = str(error) if isinstance(error, ExportError) else f"{_refused(target_folder, error)}"
                raise WrittenElsewhereError(f"{reason} The new model is in {rescued}.") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _publish(part: Path, old: Path, target_folder: Path, real: Path, replaces: bool) -> None:
    """Move a complete temporary folder to its final path.

    An existing folder at this path is first renamed, then checked, and deleted after the move.
    """
    if not replaces or not real.is_dir() or not any(real.iterdir()):
        part.replace(real)  # this raises an error if the path exists and is not an empty folder
        return
    real.replace(old)
    try:
        # Other programs cannot add files after this check, because the folder has been renamed.
        files = _own_files(target_folder, old)
        part.replace(real)
    except BaseException:
        _restore(old, target_folder, real)
        raise
    for file in files:
        with suppress(OSError):
            file.unlink()
    for above, _, _ in os.walk(old, topdown=False):
        with suppress(OSError):
            Path(above).rmdir()


def _restore(old: Path, target_folder: Path, real: Path) -> None:
    try:
        old.replace(real)
    except OSError:
        raise ExportError(
            f"{target_folder} was created by another program in the meantime. The previous content is in "
            f"{old}."
        ) from None


def write_zip(file: BinaryIO, name: str, fill: Callable[[Path], None], size: int) -> None:
    """Write a folder as a ZIP file without compression, because model weights are hardly compressible.

    The files are first written to a temporary folder.

    Args:
        file: the open file to which the zip is written.
        name: name of the folder in the zip.
        fill: function that writes the files into an empty folder.
        size: approximate size in bytes.

    Raises:
        ExportError: the zip cannot be written; the temporary folder is removed.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="bert-probe-") as above:
            free = shutil.disk_usage(above).free
            if free < 2 * size:
                raise ExportError(
                    f"A ZIP file of the model needs about {format_bytes(2 * size)}, but only "
                    f"{format_bytes(free)} are free in {above}. Free some space, or save the model in a "
                    "folder."
                )
            folder = Path(above) / name
            folder.mkdir()
            fill(folder)
            _seal(folder)
            with zipfile.ZipFile(file, "w") as packed:
                for path in sorted(folder.rglob("*")):
                    packed.write(path, path.relative_to(above))
                    if path.is_file():
                        path.unlink()  # free disk space for the remaining files
    except Exception as error:
        if not _is_from_writing(error):
            raise
        raise ExportError(
            f"The ZIP file cannot be written: {_reason(error)}. Save the model in a folder."
        ) from None


def _sync(folder: Path) -> None:
    """Flush all files to the disk, and set their permissions like those of the folder.

    By default, safetensors writes files that only their owner can read.
    """
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def _system_errors(target_folder: Path) -> Iterator[None]:
    """Convert errors from writing files to an ExportError that names the folder."""
    try:
        yield
    except Exception as error:
        if not _is_from_writing(error):
            raise
        raise _refused(target_folder, error) from None


def _is_from_writing(error: Exception) -> bool:
    """Return whether an error was raised because a file could not be written.

    ValueError is raised if a name contains a NUL. tokenizers raises `Exception` itself.
    """
    return isinstance(error, OSError | ValueError | SafetensorError) or type(error) is Exception


def _refused(target_folder: Path, error: Exception) -> ExportError:
    return ExportError(f"{target_folder} cannot be written: {_reason(error)}. Choose another path.")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).rstrip(".")


_DEFAULT = "default"
"""Name of the Router's default route, for texts without a task; not used if a task has the same modules."""


def write_sentence_model(folder: Path, model: SentenceModel) -> None:
    """Write the files that `read_sentence_model` reads, in the format of sentence-transformers.

    Unsupported routes are omitted. If the routes differ, they are written to a Router in a subfolder.
    """
    routes = {task: route for task, route in model.routes if isinstance(route, SentenceModel)}
    lengths = {
        f"{task}_length": route.max_tokens
        for task, route in routes.items()
        if route.max_tokens != model.max_tokens
    }
    entries = [("", "Transformer")]
    if all(_modules(route) == _modules(model) for route in routes.values()):
        entries += _write_modules(folder, model, "")
    else:
        entries += [("1_Router", "Router")]
        _write_router(folder / "1_Router", model, routes)
    _write(
        folder / MODULES_FILE,
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(entries)
        ],
    )
    limits = {"max_seq_length": model.max_tokens, "do_lower_case": model.lower_case}
    _write(folder / "sentence_bert_config.json", limits | lengths)
    options = {
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
        "similarity_fn_name": model.similarity,
        "truncate_dim": model.dimensions,
    }
    _write(folder / MODEL_FILE, options)


def _write_router(folder: Path, model: SentenceModel, routes: dict[str, SentenceModel]) -> None:
    """Write the modules of all routes, and the configuration of the Router."""
    folder.mkdir(exist_ok=True)
    default = next((task for task, route in routes.items() if _modules(route) == _modules(model)), _DEFAULT)
    all_routes = routes if default in routes else routes | {_DEFAULT: model}
    modules = {task: _write_modules(folder, route, f"{task}_") for task, route in all_routes.items()}
    parameters = {
        "default_route": None if model.default_error else default,
        "allow_empty_key": not model.default_error,
    }
    config = {
        "types": {
            path: f"sentence_transformers.models.{kind}" for route in modules.values() for path, kind in route
        },
        "structure": {task: [path for path, _ in route] for task, route in modules.items()},
        "parameters": parameters,
    }
    # Versions of sentence-transformers before 5 read config.json.
    for name in ("router_config.json", "config.json"):
        _write(folder / name, config)


def _write_modules(folder: Path, model: SentenceModel, prefix: str) -> list[tuple[str, str]]:
    """Write the modules after the Transformer; return the folder name and the kind of each module.

    Args:
        folder: the folder of the model.
        model: the model to write.
        prefix: prefix of the folder names.
    """
    entries = []
    for number, module in enumerate((*model.token_modules, None, *model.vector_modules), 1):
        kind = "Pooling" if module is None else module.kind
        path = f"{prefix}{number}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        entries.append((path, kind))
        if module is None:
            pooling = {"pooling_mode": list(model.modes), "include_prompt": model.include_prompt}
            config = {"embedding_dimension": model.size_of_token} | pooling
        else:
            inputs = {"module_input_name": TOKENS} if number <= len(model.token_modules) else {}
            config = module.config | inputs
            if module.sha256:
                weights = {name: tensor.contiguous() for name, tensor in module.network.state_dict().items()}
                save_file(weights, folder / path / "model.safetensors")
        _write(folder / path / "config.json", config)
    return entries


def _modules(model: SentenceModel) -> tuple[Any, ...]:
    return model.modes, model.include_prompt, model.token_modules, model.vector_modules


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
