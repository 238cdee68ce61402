"""Pickled weight files that attack the program that loads them."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

GADGETS = {
    "posix.system": b"cposix\nsystem\n(X\x0d\x00\x00\x00touch {mark}tR.",
    "os.system": b"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "nt.system": b"cnt\nsystem\n(X\x04\x00\x00\x00truetR.",
    **{
        name: f"c{name.rpartition('.')[0]}\n{name.rpartition('.')[2]}\n(X\x01\x00\x00\x001tR.".encode()
        for name in (
            *("builtins.eval", "builtins.exec", "builtins.getattr", "builtins.__import__", "builtins.open"),
            *("builtins.compile", "builtins.bytearray", "builtins.set", "builtins.complex", "builtins.vars"),
            *("__builtin__.eval", "__builtin__.apply", "subprocess.Popen", "subprocess.check_output"),
            *("runpy.run_path", "runpy._run_code", "importlib.import_module", "imp.load_source"),
            *("pty.spawn", "socket.create_connection", "socket.socket", "shutil.rmtree", "pathlib.Path"),
            *("torch.load", "torch.hub.load", "torch.jit.load", "torch.serialization.load", "torch.save"),
            *("torch.utils.data.DataLoader", "torch.distributed.rpc.rpc_sync", "torch._C._jit_pass_inline"),
            *("torch.storage._load_from_bytes", "torch._dynamo.optimize", "torch.ops.load_library"),
            *(
                "torch.classes.load_library",
                "torch.utils.collect_env.run",
                "torch.fx.graph_module.reduce_graph_module",
            ),
            *("torch._utils._rebuild_wrapper_subclass", "torch._utils._rebuild_sparse_tensor"),
            *("torch._utils._rebuild_device_tensor_from_numpy", "torch._utils._rebuild_qtensor"),
            *("torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_nested_tensor"),
            *("torch._utils._rebuild_meta_tensor_no_storage", "torch._tensor._rebuild_from_type_v2"),
            *("torch.serialization.register_package", "torch.serialization.add_safe_globals"),
            *("torch.FloatStorageX", "torch._utils._rebuild_tensor_v2x", "collections.OrderedDict.x"),
            *("numpy.core.multiarray._reconstruct", "numpy.load", "numpy.testing._private.utils.runstring"),
            *("functools.partial", "functools.reduce", "operator.attrgetter", "operator.methodcaller"),
            *("itertools.starmap", "types.FunctionType", "types.CodeType", "marshal.loads", "pickle.loads"),
            *("_pickle.loads", "dill._dill._create_function", "cloudpickle.cloudpickle._make_function"),
            *("joblib.load", "code.interact", "ctypes.CDLL", "_ctypes.dlopen", "cProfile.run", "pdb.run"),
            *("bdb.Bdb", "timeit.timeit", "asyncio.create_subprocess_shell", "multiprocessing.Process"),
            *(
                "webbrowser.open",
                "urllib.request.urlopen",
                "http.client.HTTPConnection",
                "ssl.get_server_certificate",
            ),
            *("logging.config.listen", "pip.main", "site.main", "sys.setprofile", "gc.get_objects"),
            *("_codecs.encode", "codecs.decode", "copyreg._reconstructor", "collections.Counter"),
            *("transformers.AutoModel", "transformers.dynamic_module_utils.get_class_from_dynamic_module"),
            *("bert_probe.conversion.child.main", "__main__.x", "linecache.getline", "tempfile.mktemp"),
        )
    },
}
"""Name of a global → pickle that calls this global. Files with weights need none of these globals."""

SEED = (
    *(
        "posix.system",
        "builtins.eval",
        "builtins.bytearray",
        "torch.load",
        "numpy.core.multiarray._reconstruct",
    ),
    *("functools.partial", "torch._utils._rebuild_wrapper_subclass", "torch.FloatStorageX"),
)
"""The names of the `GADGETS` that `make test` tries."""


_START: tuple[Any, ...] = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
LEGACY_START = b"".join(pickle.dumps(value, 2) for value in _START)
"""The pickles that precede the state dict in a file that torch.save wrote before version 1.6."""


def saved(state: object) -> bytes:
    """Return the content of a file that torch.save writes."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def legacy(state: object) -> bytes:
    """Return the content of a file that torch.save wrote before version 1.6."""
    stream = io.BytesIO()
    torch.save(state, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def zipped(
    content: bytes, records: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Return a zip file in the format of torch.save, with the given pickle and storages."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", b"little")
        for name, record in (records or {}).items():
            archive.writestr(f"archive/data/{name}", record)
        archive.writestr("archive/version", b"3\n")
    return stream.getvalue()


def text(value: str) -> bytes:
    """Return the pickle instruction for a string."""
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    """Return the pickle instruction for an integer of up to 255 bytes."""
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def tensor(
    numbers: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...], key: str = "0"
) -> bytes:
    """Return pickle instructions for a float32 tensor with any storage size, offset, size and stride."""
    storage = (
        b"("
        + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text(key)
        + text("cpu")
        + integer(numbers)
        + b"tQ"
    )
    shape = b"(" + b"".join(map(integer, size)) + b"t"
    steps = b"(" + b"".join(map(integer, stride)) + b"t"
    rest = integer(offset) + shape + steps + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


def state_of(*tensors: bytes) -> bytes:
    """Return the pickle of a dict of tensors named w0, w1, …"""
    items = b"".join(text(f"w{number}") + content for number, content in enumerate(tensors))
    return b"\x80\x02}(" + items + b"u."


FOUR = struct.pack("<4f", 1, 2, 3, 4)
"""The bytes of a storage with four float32 elements."""


FLIPPED = struct.pack("<99f", *[1.5] * 99), struct.pack("<99f", *[1.5] * 98, -1.5)
"""The bytes of a storage with 99 float32 elements, before and after one bit was flipped."""


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"cos\n"))
    return stream.getvalue()


def _script() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/constants.pkl", b").")
        archive.writestr("archive/data.pkl", b"}.")
    return stream.getvalue()


def _two_pickles() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("archive/data.pkl", "other/data.pkl"):
            archive.writestr(name, b"}.")
    return stream.getvalue()


def _exponential_key() -> bytes:
    """Return a pickle whose dict key consists of 2^60 shared tuples, so that hashing it never ends."""
    return b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"K\x01s."


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a pickle": (lambda: b"not even a pickle", "was not written by torch.save"),
    "empty": (lambda: b"", "is empty or begins with zeros"),
    "zeros": (lambda: bytes(1_000_000), "is empty or begins with zeros: its download or copy is incomplete"),
    "truncated zip": (lambda: saved({"w": torch.ones(5000)})[:9_000], "is broken or truncated"),
    "flipped bit": (
        lambda: saved({"w": torch.full((99,), 1.5)}).replace(FLIPPED[0], FLIPPED[1]),
        "is broken: the content of archive/data/0 does not match its CRC-32",
    ),
    "zip without end": (lambda: saved({"w": torch.ones(5000)})[:-30], "is broken or truncated"),
    "truncated legacy": (lambda: legacy({"w": torch.ones(5000)})[:9_000], "is broken"),
    "tar": (_tar, "is a tar file from a PyTorch version before 0.2"),
    "TorchScript": (_script, "is a TorchScript program"),
    "zip bomb of a storage": (
        lambda: zipped(
            state_of(tensor(10**7, 0, (10**7,), (1,))), {"0": b"\0" * 4 * 10**7}, zipfile.ZIP_DEFLATED
        ),
        "is compressed",
    ),
    "zip bomb of a pickle": (
        lambda: zipped(b"\x80\x02" + b"N0" * 10**7 + b"}.", compression=zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "two pickles": (_two_pickles, "contains 2 files named data.pkl"),
    "many instructions": (lambda: zipped(b"\x80\x02" + b"N0" * 2_600_000 + b"}."), "pickle instructions"),
    "deep nesting": (lambda: zipped(b"\x80\x02N" + b"\x85" * 1_000_000 + b"."), "does not contain a dict"),
    "huge integer": (lambda: zipped(b"\x80\x02\x8b\xff\xff\xff\x7f" + b"1" * 9 + b"."), "is broken"),
    "huge string": (lambda: zipped(b"\x80\x02X\xff\xff\xff\xffabc."), "is broken"),
    "unknown memo": (lambda: zipped(b"\x80\x02h\x07."), "is broken"),
    "empty stack": (lambda: zipped(b"\x80\x02R."), "is broken"),
    "list": (lambda: saved([torch.ones(2)]), "does not contain a dict of tensors"),
    "empty dict": (lambda: saved({}), "contains 0 tensors"),
    "number in the dict": (lambda: saved({"w": torch.ones(2), "epoch": 3}), "contains epoch of type int"),
    "dict in the dict": (lambda: saved({"state": {"w": torch.ones(2)}}), "contains state of type dict"),
    "name that is not text": (lambda: saved({3: torch.ones(2)}), "invalid name 3"),
    "reserved name": (lambda: saved({"__metadata__": torch.ones(2)}), "invalid name __metadata__"),
    "complex numbers": (lambda: saved({"w": torch.ones(2, dtype=torch.complex64)}), "dense tensor"),
    "storage beyond its file": (
        lambda: zipped(state_of(tensor(10**12, 0, (10**12,), (1,))), {"0": FOUR}),
        "pytorch_model.bin",
    ),
    "storage beyond its record": (
        lambda: zipped(state_of(tensor(10**4, 0, (10**4,), (1,))), {"0": FOUR}),
        "pytorch_model.bin",
    ),
    "storage one number beyond its record": (
        lambda: zipped(state_of(tensor(5, 0, (5,), (1,))), {"0": FOUR}),
        "record size (16 bytes) does not match expected size (20 bytes",
    ),
    "size beyond the storage": (
        lambda: zipped(state_of(tensor(4, 0, (400,), (1,))), {"0": FOUR}),
        "is broken",
    ),
    "stride beyond the storage": (
        lambda: zipped(state_of(tensor(4, 0, (2,), (2**62,))), {"0": FOUR}),
        "is broken",
    ),
    "overflowing size": (
        lambda: zipped(state_of(tensor(4, 0, (2**32, 2**32), (1, 1))), {"0": FOUR}),
        "pytorch_model.bin",
    ),
    "negative offset": (lambda: zipped(state_of(tensor(4, -8, (4,), (1,))), {"0": FOUR}), "is broken"),
    "negative stride": (lambda: zipped(state_of(tensor(4, 3, (4,), (-1,))), {"0": FOUR}), "is broken"),
    "negative storage": (lambda: zipped(state_of(tensor(-4, 0, (4,), (1,))), {"0": FOUR}), "is broken"),
    "item of a tensor": (
        lambda: zipped(b"\x80\x02" + tensor(4, 0, (4,), (1,)) + b"K\x00G?\xf0\0\0\0\0\0\0s.", {"0": FOUR}),
        "is broken",
    ),
    "items of a tensor": (
        lambda: zipped(b"\x80\x02" + tensor(4, 0, (4,), (1,)) + b"(K\x00K\x01u.", {"0": FOUR}),
        "is broken",
    ),
    "name with a surrogate": (
        lambda: saved({"a\ud800": torch.ones(4)}),
        "has a tensor with the invalid name",
    ),
    "missing storage": (lambda: zipped(state_of(tensor(4, 0, (4,), (1,), "7"))), "is broken"),
    "storage with a path": (
        lambda: zipped(state_of(tensor(4, 0, (4,), (1,), "../../../etc/passwd")), {"0": FOUR}),
        "is broken",
    ),
    "expanded tensor": (
        lambda: zipped(state_of(tensor(4, 0, (10**6, 10**6), (0, 0))), {"0": FOUR}),
        "contains the tensor w0, which is larger than its storage",
    ),
    "one storage many times": (
        lambda: zipped(state_of(*[tensor(2500, 0, (2500,), (1,))] * 200), {"0": FOUR * 625}),
        "declares more tensor data than it contains",
    ),
    "legacy storage beyond its file": (
        lambda: legacy({"w": torch.ones(4)}).replace(b"K\x04N", b"J\x00\x00\x00\x40N"),
        "",
    ),
}
"""Description → function that creates the file, and a part of the error message; "" if torch may also
read the file safely."""

ENDLESS = _exponential_key()
"""A pickle whose dict key takes forever to hash."""


def write(folder: Path, content: bytes) -> Path:
    """Replace the weights of a checkpoint folder by a pickled file; return the file."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    path = folder / "pytorch_model.bin"
    path.write_bytes(content)
    return path
