"""Runs code as a user without root's permissions, even if the tests run as root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_probe.errors import ProbeError

_NOBODY = 65534


@contextmanager
def read_only_folder() -> Iterator[Path]:
    """Yield a folder that only root can write to, with a subfolder ``open`` that every user can write to."""
    above = Path(tempfile.mkdtemp())
    folder = above / "folder"
    (folder / "open").mkdir(parents=True)
    above.chmod(0o755)
    (folder / "open").chmod(0o777)
    folder.chmod(0o555)
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(above)


def as_nobody(work: Callable[[], object]) -> str:
    """Run a function in another process as an ordinary user, and return "done" or its error message."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        message = "done"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            work()
        except ProbeError as error:
            message = str(error)
        except BaseException as error:
            message = repr(error)
        finally:
            os.write(sink, message.encode())
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        message = stream.read().decode()
    os.waitpid(child, 0)
    return message
