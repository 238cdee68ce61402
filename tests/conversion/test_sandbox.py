"""Test the restrictions of the process that reads pickled weights."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = "sandbox._install_filter()"
HOOK = "sys.addaudithook(sandbox._reject_events)"
ATTEMPTS = {
    "socket": "socket.socket()",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork()",
    "program": "os.execv('/bin/true', ['true'])",
    "subprocess": "subprocess.run(['true'])",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "new file": "open(folder + '/new', 'w')",
    "new file by flags": "os.open(folder + '/new', os.O_RDWR | os.O_CREAT)",
    "append": "open(folder + '/file', 'ab')",
    "truncate": "os.truncate(folder + '/file', 0)",
    "delete": "os.unlink(folder + '/file')",
    "rename": "os.rename(folder + '/file', folder + '/other')",
    "link": "os.link(folder + '/file', folder + '/other')",
    "symbolic link": "os.symlink(folder + '/file', folder + '/other')",
    "folder": "os.mkdir(folder + '/below')",
    "mode": "os.chmod(folder + '/file', 0o777)",
    "signal": "os.kill(os.getppid(), 0)",
}
BY_LIBC = {
    "socket": "libc.socket(2, 1, 0)",
    "fork": "libc.fork()",
    "vfork": "libc.syscall(58)",
    "program": "libc.execv(b'/bin/true', None)",
    "new file": "libc.open((folder + '/new').encode(), os.O_WRONLY | os.O_CREAT, 0o666)",
    "openat": "libc.syscall(257, -100, (folder + '/new').encode(), os.O_RDWR | os.O_CREAT, 0o666)",
    "creat": "libc.creat((folder + '/new').encode(), 0o666)",
    "openat2": "libc.syscall(437, -100, (folder + '/new').encode(), b'\\0' * 24, 24)",
    "clone": "libc.syscall(56, 17, 0, 0, 0, 0)",
    "delete": "libc.unlink((folder + '/file').encode())",
    "ptrace": "libc.ptrace(16, os.getppid(), 0, 0)",
    "io_uring": "libc.syscall(425, 1, b'\\0' * 120)",
    "process memory": "libc.syscall(310, os.getppid(), 0, 0, 0, 0, 0)",
}

is_filtered = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="system call numbers of Linux on x86-64"
)


def run(code: str, folder: Path) -> str:
    """Run code in a new process and return its standard output."""
    (folder / "file").write_text("content")
    start = "import ctypes, os, resource, socket, subprocess, sys, threading\n"
    start += f"from bert_probe.conversion import sandbox\nfolder = {str(folder)!r}\n"
    program = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, check=False, timeout=300
    )
    assert program.returncode == 0, program.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["file"]
    return program.stdout


def attempts(expressions: dict[str, str], setup: str) -> str:
    """Return code that prints the name of each expression that does not raise PermissionError."""
    lines = [setup]
    for name, expression in expressions.items():
        lines += ["try:", f"    {expression}", "except PermissionError:", "    pass"]
        lines += ["else:", f"    print({name!r})"]
    return "\n".join(lines)


@is_filtered
def test_kernel_rejects_system_calls(tmp_path: Path) -> None:
    assert run(attempts(ATTEMPTS, KERNEL), tmp_path) == ""


def test_audit_hook_rejects_calls_of_python(tmp_path: Path) -> None:
    assert run(attempts(ATTEMPTS, HOOK), tmp_path) == ""


@is_filtered
def test_kernel_rejects_system_calls_of_native_code(tmp_path: Path) -> None:
    setup = "libc = ctypes.CDLL(None, use_errno=True)\nassert sandbox.forbid_system_access()"
    lines = [setup]
    for name, expression in BY_LIBC.items():
        lines += ["ctypes.set_errno(0)", f"result = {expression}"]
        lines += [f"if result != -1 or ctypes.get_errno() != 1: print({name!r}, result, ctypes.get_errno())"]
    code = "\n".join(lines).replace("assert sandbox.forbid_system_access()", f"assert {KERNEL}")
    assert run(code, tmp_path) == ""


@is_filtered
def test_running_threads_are_restricted_too(tmp_path: Path) -> None:
    code = f"""
go = threading.Event()
def attempt():
    go.wait()
    try:
        socket.socket()
    except PermissionError:
        print("rejected")
thread = threading.Thread(target=attempt)
thread.start()
assert {KERNEL}
go.set()
thread.join()
"""
    assert run(code, tmp_path) == "rejected\n"


def test_reading_threads_and_open_files_still_work(tmp_path: Path) -> None:
    code = """
with open(folder + "/file", "r+") as stream:
    sandbox.forbid_system_access()
    stream.write("CON")
print(open(folder + "/file").read())
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
"""
    assert run(code, tmp_path) == "CONtent\nthread\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_memory_and_file_sizes_are_limited(tmp_path: Path) -> None:
    code = """
stream = open(folder + "/file", "wb", buffering=0)
sandbox.limit_resources(2**28, 60, 1000)
kept = bytearray(2**27)
try:
    bytearray(2**28)
except MemoryError:
    print("memory")
stream.write(b"x" * 1000)
try:
    stream.write(b"x")
except OSError:
    print("file")
print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE))
"""
    assert run(code, tmp_path) == "memory\nfile\n(60, 65) (0, 0)\n"
