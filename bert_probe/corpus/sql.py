"""Run SQL over the tables of a store with DuckDB, isolated from other files, the network and settings.

The tables are views of the store's files, and no other files can be opened. The settings are locked before
the user's query is parsed, which must be a single SELECT. Only temporary files of sorts and joins are
written, to a folder for one connection. Queries run in a separate process, `sql_child`, with limited memory,
which is killed when a query takes too long.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from bert_probe.core import extras
from bert_probe.corpus.sql_child import ConnectionSetup, TableSetup, out_of_memory
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Progress, no_progress

MAX_MEMORY = "1GB"
"""DuckDB's memory limit."""
MAX_SPILL = "8GB"
"""Maximum size of DuckDB's temporary files."""
MAX_ADDRESS_SPACE = 2**31
"""Bytes that the child process may allocate, including what DuckDB does not count."""
MAX_ROWS, MAX_BYTES = 1_000_000, 2**28
"""Maximum size of an answer."""
MAX_CHARACTERS = 20_000
"""Maximum length of a query. The time to parse it grows with the square of its length."""
DEFAULT_SECONDS = 60.0
"""Default time limit of a user's query."""
_POLL_SECONDS = 0.02


class StoreTables:
    """The tables of a store, and the child process that runs queries over them."""

    def __init__(self, store: Store, setup: ConnectionSetup) -> None:
        self.store, self._setup = store, setup
        self._child = _start(setup)  # starts in parallel with the caller

    def select(self, sql: str, seconds: float | None = None, progress: Progress = no_progress) -> pa.Table:
        """Return the answer to a single SELECT.

        Args:
            sql: a query in DuckDB's dialect.
            seconds: time limit; None for no limit.
            progress: called with the number of seconds that the query has been running; an exception that it
                raises ends the query.

        Raises:
            SelectionError: the query is not valid SQL or not a single SELECT, names a table or column that
                does not exist, takes too long, needs too much memory, or its answer is too large.
        """
        if len(sql) > MAX_CHARACTERS:
            raise SelectionError(
                f"The query has {len(sql):,} characters; at most {MAX_CHARACTERS:,} are allowed. Shorten it, "
                "or open the files with DuckDB itself (docs/store.md)."
            )
        if any("\ud800" <= character <= "\udfff" for character in sql):
            raise SelectionError("The query has a lone surrogate, which is not valid Unicode. Remove it.")
        if self._child.poll() is not None:  # an earlier query ended it
            self._child = _start(self._setup)
        return self._interruptible(lambda: self._answer(sql), seconds, progress)

    def close(self) -> None:
        """End the child process."""
        self._child.kill()
        for stream in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # unread input
                assert stream is not None
                stream.close()
        self._child.wait()

    def _answer(self, sql: str) -> pa.Table:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child, sql)
            header = json.loads(self._child.stdout.readline())
        except (OSError, ValueError):  # the child ended: out of memory
            self.close()
            raise SelectionError(out_of_memory(self._setup)) from None
        if "error" in header:
            raise SelectionError(header["error"])
        try:
            with pa.ipc.open_stream(self._child.stdout) as reader:
                return reader.read_all()
        except (OSError, pa.ArrowException):
            self.close()
            raise SelectionError(out_of_memory(self._setup)) from None

    def _interruptible(
        self, work: Callable[[], pa.Table], seconds: float | None, progress: Progress
    ) -> pa.Table:
        """Wait for the child in a thread, so that Ctrl+C, a timeout or `progress` can end it."""
        answers: list[pa.Table] = []
        errors: list[BaseException] = []
        # Not Thread.join: if Ctrl+C interrupts it, the thread counts as finished.
        finished = threading.Event()

        def run() -> None:
            try:
                answers.append(work())
            except BaseException as error:  # raised again below, in the caller's thread
                errors.append(error)
            finally:
                finished.set()

        start = time.monotonic()
        threading.Thread(target=run).start()
        try:
            while not finished.wait(_POLL_SECONDS):
                elapsed = time.monotonic() - start
                progress(int(elapsed), 0)
                if seconds is not None and elapsed > seconds:
                    raise SelectionError(
                        f"The query took longer than {seconds:g} seconds. Select fewer rows or heads, or "
                        "allow more with --seconds."
                    )
        finally:
            if not finished.is_set():
                self._child.kill()
                finished.wait()
                self.close()
        if errors:
            raise errors[0]
        return answers[0]


def _start(setup: ConnectionSetup) -> subprocess.Popen[bytes]:
    extras.require("duckdb")
    # As in multiprocessing: the child can import what this process can import.
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "bert_probe.corpus.sql_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # DuckDB writes to it when it runs out of memory
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            # Malloc arenas and stacks of unused threads would fill the limited address space.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
            "MALLOC_ARENA_MAX": "2",
        },
        process_group=0 if os.name == "posix" else None,  # so that Ctrl+C reaches only this process
    )
    with suppress(OSError):  # the child has ended: the first query fails
        _send(child, setup)
    return child


def _send(child: subprocess.Popen[bytes], content: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(content).encode() + b"\n")
    child.stdin.flush()


@contextmanager
def open_tables(store: Store) -> Iterator[StoreTables]:
    """Open the tables of a store for queries."""
    with tempfile.TemporaryDirectory(prefix="bert-probe-") as spill_folder:
        tables = StoreTables(store, _setup(store, spill_folder))
        try:
            yield tables
        finally:
            tables.close()


def _setup(store: Store, spill_folder: str) -> ConnectionSetup:
    tables = {
        name: TableSetup(
            files=[str(file.resolve()) for file in store.files(name)] if store.shards else [],
            is_parquet=schema.ending == "parquet",
            schema=base64.b64encode(schema.schema.serialize()).decode("ascii"),
        )
        for name, schema in store.layouts.items()
    }
    return ConnectionSetup(
        folder=str(store.folder.resolve()),
        tables=tables,
        memory=MAX_MEMORY,
        spill_folder=spill_folder,
        spill_size=MAX_SPILL,
        address_space=MAX_ADDRESS_SPACE,
        rows=MAX_ROWS,
        bytes=MAX_BYTES,
    )
