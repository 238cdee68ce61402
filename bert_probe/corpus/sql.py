"""SQL over the tables of a store, by DuckDB, which reaches nothing else: no other file, network or setting.

The tables are views of its files, and these the only files that may be opened. The settings are locked before
anything of a person's is read, and that must be a single SELECT. Nothing is written but what a sort or a join
spills into a folder that is made for one query. All of it happens in a process of its own, `sql_child`, whose
memory is limited and which is killed when a query takes too long.
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

from bert_probe.corpus.sql_child import ConnectionSetup, TableSetup, literal, out_of_memory
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Progress, no_progress

__all__ = ["StoreTables", "literal", "opened"]

MEMORY, SPILLED = "1GB", "8GB"
"""What DuckDB may hold in memory for a query, and in a temporary folder."""
ADDRESS_SPACE = 2**31
"""Bytes that the process of a query may allocate, with what DuckDB does not count."""
ROWS, BYTES = 1_000_000, 2**28
"""The largest answer."""
LONGEST = 20_000
"""Characters of a query. Parsing one takes time that grows with their square."""
SECONDS = 60.0
"""The longest that a person's query takes, unless they say otherwise."""
_POLL = 0.02


class StoreTables:
    """The tables of a store, and the process that answers queries about them."""

    def __init__(self, store: Store, setup: ConnectionSetup) -> None:
        self.store, self._setup = store, setup
        self._child = _start(setup)  # at once, so that it starts while its caller goes on

    def select(self, sql: str, seconds: float | None = None, report: Progress = no_progress) -> pa.Table:
        """Return the answer to a single SELECT.

        Args:
            seconds: the longest that it may take; None for as long as it needs.
            report: called with the number of seconds it has been running; what it raises ends the query.

        Raises:
            SelectionError: no such table or column, no SQL, another statement than a SELECT, too large an
                answer, or one that takes too long or needs too much memory.
        """
        if len(sql) > LONGEST:
            raise SelectionError(
                f"The query has {len(sql):,} characters; at most {LONGEST:,} are allowed. Shorten it, or "
                "open the files with DuckDB itself (docs/store.md)."
            )
        if any("\ud800" <= sign <= "\udfff" for sign in sql):
            raise SelectionError("The query holds half a character, which UTF-8 cannot hold. Write it again.")
        if self._child.poll() is not None:  # an earlier query ended it
            self._child = _start(self._setup)
        return self._interruptible(lambda: self._answer(sql), seconds, report)

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        for stream in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # what was written is not read any more
                assert stream is not None
                stream.close()
        self._child.wait()

    def _answer(self, sql: str) -> pa.Table:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child, sql)
            header = json.loads(self._child.stdout.readline())
        except (OSError, ValueError):  # it has ended: the system refused it more memory
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
        self, work: Callable[[], pa.Table], seconds: float | None, report: Progress
    ) -> pa.Table:
        """Wait for the child in a thread, so that Ctrl+C, a timeout or `report` can end it."""
        done: list[pa.Table] = []
        failed: list[BaseException] = []
        over = threading.Event()  # no join: one that Ctrl+C interrupts takes the thread for ended

        def run() -> None:
            try:
                done.append(work())
            except BaseException as error:  # raised again below, in the thread that asked
                failed.append(error)
            finally:
                over.set()

        begun = time.monotonic()
        threading.Thread(target=run).start()
        try:
            while not over.wait(_POLL):
                spent = time.monotonic() - begun
                report(int(spent), 0)
                if seconds is not None and spent > seconds:
                    raise SelectionError(
                        f"The query took longer than {seconds:g} seconds. Ask for fewer rows or heads, or "
                        "allow it more with --seconds."
                    )
        finally:
            if not over.is_set():
                self._child.kill()
                over.wait()
                self.close()
        if failed:
            raise failed[0]
        return done[0]


def _start(setup: ConnectionSetup) -> subprocess.Popen[bytes]:
    # As multiprocessing does: what this process can import, the child can.
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "bert_probe.corpus.sql_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what the C++ library writes when it runs out of memory
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            # Neither arenas nor the stacks of threads are to fill the address space.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
            "MALLOC_ARENA_MAX": "2",
        },
        process_group=0 if os.name == "posix" else None,  # Ctrl+C is for this process alone
    )
    with suppress(OSError):  # a child that has ended refuses the first query
        _send(child, setup)
    return child


def _send(child: subprocess.Popen[bytes], content: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(content).encode() + b"\n")
    child.stdin.flush()


@contextmanager
def opened(store: Store) -> Iterator[StoreTables]:
    """Open the tables of a store to queries."""
    with tempfile.TemporaryDirectory(prefix="bert-probe-") as spilled:
        tables = StoreTables(store, _setup(store, spilled))
        try:
            yield tables
        finally:
            tables.close()


def _setup(store: Store, spill_folder: str) -> ConnectionSetup:
    tables = {
        name: TableSetup(
            files=[str(file.resolve()) for file in store.files(name)] if store.shards else [],
            is_parquet=layout.ending == "parquet",
            schema=base64.b64encode(layout.schema.serialize()).decode("ascii"),
        )
        for name, layout in store.layouts.items()
    }
    return ConnectionSetup(
        folder=str(store.folder.resolve()),
        tables=tables,
        memory=MEMORY,
        spill_folder=spill_folder,
        spill_size=SPILLED,
        address_space=ADDRESS_SPACE,
        rows=ROWS,
        bytes=BYTES,
    )
