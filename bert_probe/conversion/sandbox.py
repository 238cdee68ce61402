"""Restrict the process that reads pickled weights: memory, time, file sizes, and system calls.

On Linux (x86-64 and ARM64), the kernel rejects system calls for networking, other processes, and changes to
the file system (seccomp). On every system, an audit hook rejects such calls from Python code.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from pathlib import Path
from typing import Any, Final

_RESERVE_SECONDS = 5
"""Seconds between the soft and the hard limit of CPU time."""

_BLOCKED_EVENTS: Final = (
    *("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill"),
    *("pty.", "ctypes.", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink"),
    *("os.chmod", "os.chown", "os.truncate", "os.putenv", "os.unsetenv", "os.startfile", "shutil."),
    *("tempfile.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.", "winreg.", "sys.addaudithook"),
    *("code.", "cpython.run_", "os.listxattr", "os.setxattr", "os.removexattr", "syslog.", "fcntl."),
)
"""Prefixes of the audit events that are rejected."""


def limit_resources(memory: int, seconds: int, file_bytes: int) -> None:
    """Limit the memory, CPU time and file sizes of this process, if the system supports limits.

    Args:
        memory: bytes that the process may allocate in addition to its current address space.
        seconds: limit of the CPU time in seconds.
        file_bytes: maximum size of an output file in bytes.
    """
    try:
        import resource
    except ImportError:  # on Windows, where only the parent process limits the time
        return
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, seconds, seconds + _RESERVE_SECONDS)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except OSError:  # /proc exists only on Linux
        return
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + memory)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    import resource

    highest = resource.getrlimit(kind)[1]
    requested = soft if hard is None else hard
    new_hard = requested if highest == resource.RLIM_INFINITY else min(requested, highest)
    resource.setrlimit(kind, (min(soft, new_hard), new_hard))


def forbid_system_access() -> bool:
    """Forbid network access, other processes, and changes to files that are not yet open.

    The restrictions cannot be removed afterwards.

    Returns:
        Whether the kernel enforces the restrictions. If not, only Python's audit hook does.
    """
    is_enforced = _install_filter()
    sys.addaudithook(_reject_events)
    return is_enforced


def _reject_events(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        _reject_writing(*arguments)
    elif event.startswith(_BLOCKED_EVENTS):
        raise PermissionError(errno.EPERM, f"{event} is not allowed while pickled weights are read")


def _reject_writing(file: Any, mode: Any, flags: Any) -> None:
    writing_flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    writes = isinstance(flags, int) and flags & writing_flags
    if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
        raise PermissionError(errno.EPERM, "Writing is not allowed while pickled weights are read", file)


# ---------------------------------------------------------------- seccomp, see seccomp(2) of Linux

_BLOCKED_CALLS: Final = {
    # system calls for networking
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "recvmmsg": (299, 243),
    # system calls that start or control processes
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "unshare": (272, 97),
    "setns": (308, 268),
    # system calls that change files; a filter cannot check the flags of openat2
    "creat": (85, None),
    "openat2": (437, 437),
    "open_by_handle_at": (304, None),
    "truncate": (76, 45),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "link": (86, None),
    "linkat": (265, 37),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    # system calls that change file systems
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # system calls that change the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
}
"""System calls that fail with EPERM: name → numbers on x86-64 and ARM64; None if the call does not exist."""
_MACHINES: Final = ("x86_64", "aarch64")
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435
_OPEN_CALLS: Final = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""For open and openat on each architecture: (system call number, index of the argument with the flags)."""
_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE_THREAD = 0x10000
_X32_BIT = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS = 1, 1


def _install_filter() -> bool:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES or sys.byteorder != "little":
        return False
    program = b"".join(_filter_program(machine))
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    description = Program(len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    libc.syscall.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p]
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    # Unlike prctl, seccomp(2) can also restrict threads that are already running.
    result = libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _ALL_THREADS, ctypes.addressof(description))
    return bool(result == 0)


def _filter_program(machine: str) -> list[bytes]:
    """Return the instructions of the seccomp filter (classic BPF) for a machine architecture.

    Each block of instructions returns an error for a system call, or continues with the next block.
    """
    number, argument = 0, 16  # offsets in struct seccomp_data; the architecture is at offset 4
    eperm, enosys = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    writing_flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    program = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, number),
    ]
    if machine == "x86_64":
        program += [_instruction(_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL)]
    for numbers in _BLOCKED_CALLS.values():
        call = numbers[_MACHINES.index(machine)]
        if call is not None:
            program += [_instruction(_EQUAL, call, 0, 1), _instruction(_RETURN, eperm)]
    program += [_instruction(_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, enosys)]
    for call, position in _OPEN_CALLS[machine]:
        program += [
            _instruction(_EQUAL, call, 0, 4),
            _instruction(_LOAD, argument + 8 * position),
            _instruction(_ANY_BIT, writing_flags, 0, 1),
            _instruction(_RETURN, eperm),
            _instruction(_RETURN, _ALLOW),
        ]
    program += [
        _instruction(_EQUAL, _CLONE[machine], 0, 4),
        _instruction(_LOAD, argument),
        _instruction(_ANY_BIT, _CLONE_THREAD, 1, 0),  # threads are allowed, processes are not
        _instruction(_RETURN, eperm),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _ALLOW),
    ]
    return program


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
