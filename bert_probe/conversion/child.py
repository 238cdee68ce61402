"""The child process that reads pickled weights and writes them as safetensors.

`python -m bert_probe.conversion.child` reads a `Setup` as one line of JSON and opens the output files. It
blocks its own access to the system (see `sandbox`) before it reads the first byte of a pickle file. The
process writes lines of JSON: {"progress": bytes} when it begins to read and after each tensor, and finally
{"error": message} or {"files": […]} with a `Conversion` for each file. The process exits when its standard
input ends, because the parent process has then ended.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import struct
import sys
import tarfile
import threading
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NoReturn, TypedDict

import torch

from bert_probe.conversion.sandbox import forbid_system_access, limit_resources
from bert_probe.errors import OutOfMemoryError, WeightsError, memory_errors

DTYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Supported dtype → its name in the safetensors format."""
MAX_TENSORS: Final = 100_000
"""Maximum number of tensors in a file."""
MAX_INSTRUCTIONS: Final = 5_000_000
"""Maximum number of pickle instructions; a checkpoint of 10,000 tensors has about 300,000."""
MAX_PICKLE_BYTES: Final = 100_000_000
"""Maximum size of the pickle in a zip file, without the weights."""
MAX_NAME: Final = 500
"""Maximum length of a tensor's name."""

_ALLOWED: Final = re.compile(
    r"collections\.OrderedDict"
    r"|torch\.(Size|Tensor|nn\.parameter\.Parameter|(float|int|uint)[0-9]+|bfloat16|bool)"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
    r"|torch\.(cuda\.)?[A-Z][A-Za-z0-9]{2,14}Storage|torch\.storage\.(UntypedStorage|TypedStorage)"
)
"""Matches the globals that a state dict needs; torch's unpickler allows more, such as bytearray."""
_UNSUPPORTED: Final = ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4")
"""Pickle instructions, besides GLOBAL and INST, that import a global; torch.save does not write them."""
_LEGACY_PICKLES: Final = 5
"""Number of pickles that torch before 1.6 writes: magic number, version, system, tensors, storage keys."""
_ZIP, _BLOCK = b"PK\x03\x04", 1 << 24


class FileSetup(TypedDict):
    """A file to convert: absolute input and output path, and a dict from tied weights to stored tensors."""

    source: str
    target: str
    tied: dict[str, str]


class Setup(TypedDict):
    """The message from the parent process: files to convert, and limits for `limit_resources`."""

    files: list[FileSetup]
    memory: int
    seconds: int


class Conversion(TypedDict):
    """The result of converting one file.

    `tensors` is the number of written tensors. `shared` maps the name of each tied tensor, which is not
    written, to the name of the stored tensor.
    """

    tensors: int
    shared: dict[str, str]


class _PickleFile:
    """A file with pickled weights."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.size = path.stat().st_size
        with path.open("rb") as stream:
            self.is_zip = stream.read(len(_ZIP)) == _ZIP

    def error(self, problem: str, remedy: str = "Download or copy the file again.") -> WeightsError:
        return WeightsError(f"{self.name} {problem}. {remedy}")


def convert_file(
    source_path: Path, target: BinaryIO, tied: Mapping[str, str], on_written: Callable[[int], None]
) -> Conversion:
    """Read the tensors of a pickled file, and write them as safetensors.

    Args:
        source_path: the pickled file.
        target: the open output file.
        tied: see `FileSetup`.
        on_written: called with the number of bytes written so far.

    Raises:
        WeightsError: the file is broken, refers to a global that state dicts do not need, or contains
            anything other than dense tensors.
        OutOfMemoryError: the file needs more memory than this process may use.
    """
    source = _PickleFile(source_path)
    with memory_errors(
        f"{source.name} needs more memory than is allowed for its size, so it was not converted."
    ):
        check_pickles(source)
        tensors = _check_tensors(source, _load(source))
        shared = find_shared(tensors, tied)
        unshared = {name: tensor for name, tensor in tensors.items() if name not in shared}
        write_safetensors(unshared, target, on_written)
    return Conversion(tensors=len(unshared), shared=shared)


# ---------------------------------------------------------------- before unpickling


def check_pickles(source: _PickleFile) -> None:
    """Raise an error unless the pickles in a file import only globals that a state dict needs.

    The pickle instructions are parsed, not executed. This check can name the global in the error message, and
    is stricter than the subsequent check by torch's unpickler.
    """
    if source.is_zip:
        with source.path.open("rb") as stream:
            _scan(source, _pickle_in_zip(source, stream), 1)
            _check_crc(source, stream)
        return
    with source.path.open("rb") as stream:
        if not any(stream.read(tarfile.BLOCKSIZE)):  # is_tarfile returns True for a block of zeros
            raise source.error("is empty or begins with zeros: its download or copy is incomplete")
    if tarfile.is_tarfile(source.path):
        raise source.error(
            "is a tar file from a PyTorch version before 0.2, which cannot be read safely",
            "Use other weights.",
        )
    with source.path.open("rb") as stream:
        _scan(source, stream, _LEGACY_PICKLES)


def _pickle_in_zip(source: _PickleFile, stream: BinaryIO) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(stream)
        members = archive.infolist()
        pickles = [member for member in members if re.fullmatch(r"[^/]+/data\.pkl", member.filename)]
        is_packed = any(
            member.compress_type or member.file_size != member.compress_size for member in members
        )
        is_script = any(member.filename.endswith("/constants.pkl") for member in members)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise source.error(f"is broken or truncated ({_reason(error)})") from None
    if is_script:
        raise source.error(
            "is a TorchScript program, not weights", "Use a file that contains the model's state dict."
        )
    if len(pickles) != 1:
        raise source.error(f"contains {len(pickles)} files named data.pkl instead of one")
    if is_packed:
        raise source.error("is compressed, which torch.save never does", "Use other weights.")
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        raise source.error(
            f"has a pickle of {pickles[0].file_size:,} bytes, but at most {MAX_PICKLE_BYTES:,} bytes are "
            "allowed",
            "Use other weights.",
        )
    try:
        return archive.open(pickles[0])
    except (zipfile.BadZipFile, RuntimeError, OSError) as error:
        # zipfile raises RuntimeError for an encrypted ZIP.
        raise source.error(f"is broken or truncated ({_reason(error)})") from None


def _check_crc(source: _PickleFile, stream: BinaryIO) -> None:
    """Raise an error if a record in a zip file does not have the CRC-32 that the file states.

    torch does not check it.
    """
    try:
        broken = zipfile.ZipFile(stream).testzip()
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, RuntimeError, struct.error) as error:
        raise source.error(f"is broken or truncated ({_reason(error)})") from None
    if broken is not None:
        raise source.error(f"is broken: the content of {_printable(broken)} does not match its CRC-32")


def _scan(source: _PickleFile, stream: IO[bytes], count: int) -> None:
    """Raise an error unless the next `count` pickles in a stream are valid and use only allowed globals."""
    instructions = 0
    for position in range(count):
        names: list[str] = []  # in pickle protocol 4, the last two strings form the name of a global
        try:
            for operation, argument, _ in pickletools.genops(stream):
                instructions += 1
                if instructions > MAX_INSTRUCTIONS:
                    raise source.error(
                        f"has more than {MAX_INSTRUCTIONS:,} pickle instructions", "Use other weights."
                    )
                if operation.name in ("GLOBAL", "INST"):
                    name = str(argument).replace(" ", ".", 1)
                    if not _ALLOWED.fullmatch(name):
                        raise _forbidden_global(source, name)
                elif operation.name in _UNSUPPORTED:  # torch's unpickler rejects these instructions, too
                    raise _forbidden_global(source, ".".join(names) or f"the extension {argument}")
                elif isinstance(argument, str):
                    names = [*names[-1:], argument]
        except (ValueError, EOFError, OSError, OverflowError, zipfile.BadZipFile) as error:
            if source.is_zip or position:
                raise source.error(f"is broken or truncated ({_reason(error)})") from None
            raise source.error("was not written by torch.save") from None


def _forbidden_global(source: _PickleFile, name: str) -> WeightsError:
    return source.error(
        f"refers to {_printable(name)}, which is not needed to store weights and may run code",
        "No code from the file was executed. Use other weights, and report the file to its publisher.",
    )


# ---------------------------------------------------------------- reading


def _load(source: _PickleFile) -> Any:
    """Unpickle a file with torch's restricted unpickler. No other function unpickles files."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # suppress warnings, because the parent process reads only JSON
            # Without memory-mapping, torch compares the size of each storage with that of its record.
            return torch.load(source.path, map_location="cpu", weights_only=True, mmap=False)
    except MemoryError:
        raise
    except Exception as error:  # the functions that the pickle calls may raise any exception
        text = str(error)
        if refused := re.search(r"GLOBAL (\S+)", text):
            raise _forbidden_global(source, refused[1]) from None
        with memory_errors(f"{source.name} needs more memory than is allowed for its size."):
            if isinstance(error, RuntimeError):
                raise_if_out_of_memory(error)
        detail = text.rpartition("WeightsUnpickler error:")[2].partition("Check the documentation")[0]
        detail = detail or type(error).__name__
        raise source.error(f"is broken or does not contain weights ({_reason(detail)})") from None


def raise_if_out_of_memory(error: RuntimeError) -> None:
    """Raise MemoryError if the error is torch's RuntimeError for a failed memory allocation."""
    if re.search(
        r"not enough memory|can't allocate memory|failed to allocate|out of memory|mmap", str(error)
    ):
        raise MemoryError(str(error)) from None


def _check_tensors(source: _PickleFile, state: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in a state dict. Raise an error for any value that is not a valid dense tensor."""
    if type(state) not in (dict, OrderedDict):
        raise source.error("does not contain a dict of tensors", "Save the model's state dict.")
    if not 0 < len(state) <= MAX_TENSORS:
        raise source.error(f"contains {len(state):,} tensors, but must contain 1 to {MAX_TENSORS:,}")
    tensors: dict[str, torch.Tensor] = {}
    storages: dict[int, int] = {}  # size in bytes, by address
    written = 0
    for name, value in dict.items(state):  # a pickle can replace the attribute `items` of an OrderedDict
        if type(name) is not str or not _is_valid_name(name):
            raise source.error(f"has a tensor with the invalid name {_printable(name)}")
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise source.error(
                f"contains {_printable(name)} of type {type(value).__name__}, which is not a tensor",
                "Save the model's state dict.",
            )
        tensor = value.detach()
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
            raise source.error(
                f"contains {_printable(name)} ({tensor.dtype}, {tensor.layout}, {tensor.device}), which "
                "is not a dense tensor of a supported type",
                "Use the weights before quantization.",
            )
        storage = tensor.untyped_storage()
        size = tensor.numel() * tensor.element_size()
        if size and (size > storage.nbytes() or _last_byte(tensor) > storage.nbytes()):
            raise source.error(f"contains the tensor {_printable(name)}, which is larger than its storage")
        storages[storage.data_ptr()] = storage.nbytes()
        tensors[name] = tensor.resolve_neg()
        written += size
    if sum(storages.values()) > source.size or written > 2 * source.size:
        raise source.error("declares more tensor data than it contains")
    return tensors


def _last_byte(tensor: torch.Tensor) -> int:
    """Return the byte offset at which a tensor ends in its storage; sys.maxsize for negative strides."""
    if min(tensor.stride(), default=0) < 0 or tensor.storage_offset() < 0:
        return sys.maxsize
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def find_shared(tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from the names of tied tensors to the names of the tensors whose memory they share.

    Only tensors that transformers ties are included. Other tensors with shared memory are written
    separately, because loading the file would not tie them.
    """
    return {
        name: other
        for name, other in tied.items()
        if name in tensors
        and other in tensors
        and other not in tied
        and _is_same(tensors[name], tensors[other])
    }


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (first.data_ptr(), first.dtype, first.shape, first.stride()) == (
        second.data_ptr(),
        second.dtype,
        second.shape,
        second.stride(),
    )


# ---------------------------------------------------------------- writing


def write_safetensors(
    tensors: Mapping[str, torch.Tensor], target: BinaryIO, on_written: Callable[[int], None]
) -> None:
    """Write tensors to a file in safetensors format, with at most one tensor copied in memory.

    The safetensors library copies all tensors before it writes them.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    # Write tensors with large elements first, so that the offset of every tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    encoded = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    encoded += b" " * (-len(encoded) % 8)
    target.write(struct.pack("<Q", len(encoded)) + encoded)
    for name, tensor in ordered:
        if tensor.numel():
            _write_bytes(tensor, target)
            on_written(header[name]["data_offsets"][1])
    target.flush()


def _write_bytes(tensor: torch.Tensor, target: BinaryIO) -> None:
    content = memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for start in range(0, len(content), _BLOCK):
        target.write(content[start : start + _BLOCK])


# ---------------------------------------------------------------- process


def _reason(error: object) -> str:
    return " ".join(_printable(str(error)).split())[:200].rstrip(". ") or type(error).__name__


def _is_valid_name(name: str) -> bool:
    """Return whether safetensors can store a tensor with this name; "__metadata__" is reserved."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name != "__metadata__"


def _printable(text: object) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in str(text))[:200]


def _end_with_parent() -> None:
    """Start a thread that exits the process when standard input ends, even while a file is being read."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _answer(setup: Setup, send: Callable[[Any], None]) -> Iterator[Conversion]:
    targets = [Path(file["target"]).open("xb") for file in setup["files"]]  # noqa: SIM115 - closed below
    sizes = [Path(file["source"]).stat().st_size for file in setup["files"]]
    limit_resources(setup["memory"], setup["seconds"], 2 * max(sizes) + (1 << 24))
    forbid_system_access()
    torch.serialization.clear_safe_globals()

    def on_written(start: int, written: int) -> None:
        send({"progress": start + written})

    on_written(0, 0)
    done = 0
    for file, target, size in zip(setup["files"], targets, sizes, strict=True):
        with target:
            yield convert_file(Path(file["source"]), target, file["tied"], partial(on_written, done))
        done += size


def main() -> NoReturn:
    """Read the setup from standard input, and convert its files."""
    out = sys.stdout.buffer

    def send(content: Any) -> None:
        out.write(json.dumps(content).encode("ascii") + b"\n")
        out.flush()

    torch.set_num_threads(1)
    setup: Setup = json.loads(sys.stdin.buffer.readline())
    _end_with_parent()
    try:
        send({"files": list(_answer(setup, send))})
    except (WeightsError, OutOfMemoryError) as error:
        send({"error": str(error), "is_memory": isinstance(error, OutOfMemoryError)})
    except MemoryError:
        send(
            {
                "error": "Reading the weights needs more memory than is allowed for files of their size.",
                "is_memory": True,
            }
        )
    except OSError as error:  # For example, the disk may be full.
        send({"error": f"The weights cannot be converted: {_reason(error)}.", "is_memory": False})
    os._exit(0)  # skip destructors, because deeply nested objects could overflow the stack


if __name__ == "__main__":
    main()
