"""Split a corpus into chunks, and process the chunks in threads, or with Ray on one or more machines.

With Ray, the main process reads the chunks and passes each of them to a Ray actor. An actor loads the model
once, writes the shards itself, and returns only their descriptions. The main process reads just enough chunks
to keep all actors busy, so that memory does not grow with the inputs.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias

import numpy as np
import psutil
import torch

from bert_probe.core import extras
from bert_probe.corpus.extract import extract_tables, table_layouts
from bert_probe.corpus.inputs import (
    NEIGHBORS,
    VECTORS,
    IngestConfig,
    InputFile,
    Record,
    check_unchanged,
    records,
)
from bert_probe.corpus.schema import MANIFEST, TableSchema
from bert_probe.corpus.store import Shard, write_shard
from bert_probe.errors import CheckpointError, ProbeError, StoreError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress

Chunk: TypeAlias = tuple[int, Sequence[Record]]
"""A chunk of records: the index of its shard, from 0, and the records."""


@dataclass(frozen=True)
class PendingChunks:
    """An iterable over the chunks that a store does not contain yet. Each iteration reads the inputs again.

    Attributes:
        files: the inputs.
        column: the text column of tables among the files.
        shard_rows: maximum number of records in a chunk, see `chunked`.
        shard_bytes: maximum size of the texts in a chunk, in bytes of UTF-8; see `chunked`.
        done: indices of the shards that the store already has.
    """

    files: tuple[InputFile, ...]
    column: str | None
    shard_rows: int
    shard_bytes: int
    done: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[Chunk]:
        chunks = chunked(records(self.files, self.column), self.shard_rows, self.shard_bytes)
        for number, chunk in enumerate(chunks):
            check_unchanged(self.files)  # raises an error if an input file has changed
            if number not in self.done:
                yield number, chunk


@dataclass(frozen=True, eq=False)
class ShardJob:
    """Computes and writes the shards of a corpus run, in any thread or process.

    Attributes:
        folder: the folder of the store.
        checkpoint: the model.
        question: the configuration of the run, from `IngestConfig.of`.
        progress_of: a function that returns the progress callback for the shard with a given index.
        cancel: called at the end of a run. Progress callbacks of unfinished shards then raise `Cancelled`.
    """

    folder: Path
    checkpoint: Checkpoint
    question: IngestConfig
    progress_of: Callable[[int], Progress] = lambda _: no_progress
    cancel: Callable[[], None] = lambda: None

    @cached_property
    def _schemas(self) -> dict[str, TableSchema]:
        return table_layouts(self.checkpoint, self.question)

    def run(self, number: int, chunk: Sequence[Record]) -> Shard:
        """Process a chunk and write its shard."""
        tables = extract_tables(self.checkpoint, self.question, chunk, self.progress_of(number))
        return write_shard(self.folder, number, chunk[0].row, len(chunk), tables, self._schemas)


class ShardRunner(Protocol):
    """Protocol for classes that process the chunks of a corpus in threads or other processes."""

    def device(self, checkpoint: Checkpoint) -> str:
        """Return the name of the device on which the model runs, which is recorded in the manifest.

        Raises:
            UnavailableError: the runner cannot use this checkpoint.
        """

    def shards(self, job: ShardJob, chunks: PendingChunks) -> Generator[Shard]:
        """Yield shards as they are completed, in any order. Only a few chunks may be read in advance."""


@dataclass(frozen=True)
class ThreadRunner:
    """A `ShardRunner` that processes chunks in threads, which share the weights of the model.

    Attributes:
        workers: number of shards that are processed at the same time.
    """

    workers: int = 1

    def device(self, checkpoint: Checkpoint) -> str:
        """Return the name of the checkpoint's device."""
        return checkpoint.description.device

    def shards(self, job: ShardJob, chunks: PendingChunks) -> Generator[Shard]:
        """Yield shards as they are completed. A chunk is read only when a thread is free to process it."""
        remaining = iter(chunks)
        if self.workers == 1:
            yield from (job.run(*chunk) for chunk in remaining)
            return
        pool = ThreadPoolExecutor(self.workers, "bert-probe corpus")
        try:
            with _limited_torch_threads(self.workers):
                waiting = {pool.submit(job.run, *chunk) for chunk in islice(remaining, self.workers)}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    waiting |= {pool.submit(job.run, *chunk) for chunk in islice(remaining, len(done))}
                    yield from (future.result() for future in done)
        finally:
            job.cancel()
            pool.shutdown(cancel_futures=True)


def threads_per_worker(workers: int) -> int:
    """Return the number of torch threads for each worker: torch's number of threads divided by `workers`."""
    return max(1, torch.get_num_threads() // workers)


@contextmanager
def _limited_torch_threads(workers: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads_per_worker(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


SHARD_ROWS = 2000
"""Default maximum number of records in a chunk. An interrupted run loses the chunks in progress."""
SHARD_BYTES = 2**29
"""Approximate memory limit of a chunk in bytes. With long texts or many layers, chunks have fewer records."""
TEXT_BYTES = 4
"""Approximate length of a token's text in bytes (UTF-8)."""
TOKEN_BYTES = 2048
"""Approximate memory for a token in bytes, without its vectors and neighbors."""
NEIGHBOR_BYTES = 32
"""Approximate memory for the neighbor of a token in one head, in bytes."""


def max_text_bytes(question: IngestConfig, checkpoint: Checkpoint) -> int:
    """Return the maximum size of the texts in a chunk, in bytes of UTF-8.

    A chunk of this size takes about `SHARD_BYTES` of memory.

    Args:
        question: the configuration of the run, from `IngestConfig.of`.
        checkpoint: the model.
    """
    description, token_bytes = checkpoint.description, TOKEN_BYTES
    if VECTORS in question.keep:
        layers = len(question.layers or ())
        token_bytes += layers * description.hidden_size * np.dtype(question.dtype).itemsize
    if NEIGHBORS in question.keep:
        token_bytes += description.layers * description.heads * NEIGHBOR_BYTES
    return SHARD_BYTES // token_bytes * TEXT_BYTES


def chunked(records: Iterable[Record], max_records: int, max_bytes: int) -> Iterator[tuple[Record, ...]]:
    """Split records into chunks. The same records always give the same chunks.

    Args:
        records: the records in input order.
        max_records: maximum number of records in a chunk.
        max_bytes: maximum size of the texts in a chunk, in bytes of UTF-8; a longer text is its own chunk.
    """
    chunk: list[Record] = []
    chunk_bytes = 0
    for record in records:
        record_bytes = len((record.text or "").encode())
        if chunk and (len(chunk) == max_records or chunk_bytes + record_bytes > max_bytes):
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(record)
        chunk_bytes += record_bytes
    if chunk:
        yield tuple(chunk)


_COMPARED = ("weights_sha256", "dtype", "device", "libraries")
"""Fields of the model's provenance that must be the same in all actors."""
_OBJECT_STORE_BYTES = 200_000_000
"""Size of Ray's object store in bytes. Further chunks are written to disk. A chunk takes several 100 KB."""
_CHUNKS_PER_ACTOR = 2
"""Number of chunks assigned to an actor at the same time: one in progress, and one waiting."""
_MAX_RETRIES = 3
"""Maximum number of retries of a chunk whose actor dies, for example because memory is full."""
_POLL_SECONDS = 0.5
"""Interval, in seconds, at which a run that waits for actors checks whether it was cancelled."""


@dataclass(frozen=True)
class RayRunner:
    """A `ShardRunner` that processes chunks in Ray actors, on this machine or on a cluster.

    Attributes:
        address: the address of a cluster, see ``ray.init``. If None, Ray is started and stopped on this
            machine, unless the program has already started it.
        workers: number of actors; each actor processes one shard at a time. On this machine, the actors share
            the cores. On a cluster, each actor has one core.
        num_gpus: number of GPUs per actor, which may be a fraction. By default, 1 if the checkpoint is on a
            GPU, otherwise 0.

    Raises:
        UnavailableError: Ray is not installed.
    """

    address: str | None = None
    workers: int = 1
    num_gpus: float | None = None

    def __post_init__(self) -> None:
        extras.require("ray", "run on local")

    def device(self, checkpoint: Checkpoint) -> str:
        """Return the device of each actor, "cuda:0" or "cpu".

        Raises:
            UnavailableError: the model exists only in memory, so other processes cannot load it.
        """
        if checkpoint.folder is None:
            raise UnavailableError(
                "Other processes cannot open a model that is only in memory. Save the model to a folder "
                "and open this folder, or use --on local."
            )
        return "cuda:0" if self._gpus_per_actor(checkpoint) else "cpu"

    def _gpus_per_actor(self, checkpoint: Checkpoint) -> float:
        if self.num_gpus is not None:
            return self.num_gpus
        return float(checkpoint.device.type == "cuda")

    def shards(self, job: ShardJob, chunks: PendingChunks) -> Generator[Shard]:
        """Yield shards as they are completed. Closing the generator cancels the shards in progress.

        Raises:
            UnavailableError: the cluster cannot be reached or is too small, or an actor died repeatedly.
            StoreError: the folder cannot be written, or does not exist on the cluster's machines.
            CheckpointError: the model or library versions of an actor differ from those of this process.
        """
        gpus = self._gpus_per_actor(job.checkpoint)
        with ready(self.address, self.workers) as threads:
            self._check_resources(threads, gpus)
            actor = RayActor.of(job, self.device(job.checkpoint), threads)
            for outcome in run_actors(job, chunks, actor, self.workers, gpus):
                if isinstance(outcome, ProbeError):
                    raise outcome
                yield outcome

    def _check_resources(self, threads: int, gpus: float) -> None:
        """Check that Ray has the resources to start all actors; otherwise, Ray would wait forever."""
        import ray

        available = ray.cluster_resources()
        for resource, unit, per_worker in (("CPU", "cores", threads), ("GPU", "GPUs", gpus)):
            needed, count = self.workers * per_worker, available.get(resource, 0)
            if needed > count:
                raise UnavailableError(
                    f"{self.workers} workers need {needed:g} {unit}, but Ray has {count:g}. Use fewer "
                    "--workers, or more machines."
                )


@dataclass(frozen=True)
class RayActor:
    """A Ray actor that processes chunks, and loads the model when it receives the first chunk.

    Attributes:
        folder: the folder of the store, which must have the same path on all machines.
        question: the configuration of the run, from `IngestConfig.of`.
        model: Hub ID or folder of the model, see `load`. If None, the built-in model.
        revision: the revision of the model, see `load`.
        provenance: expected values of the `_COMPARED` fields.
        threads: number of torch threads.
    """

    folder: Path
    question: IngestConfig
    model: str | None
    revision: str | None
    provenance: Mapping[str, Any]
    threads: int

    @classmethod
    def of(cls, job: ShardJob, device: str, threads: int) -> RayActor:
        """Return an actor for a job.

        `run_actors` uses the attributes of the returned instance to create the actors on the machines.

        Args:
            job: the job, with the model that each actor opens.
            device: the device that each actor is expected to use.
            threads: number of torch threads of each actor.
        """
        description = job.checkpoint.description
        model = {"built-in": None, "hub": description.name}.get(
            description.origin, str(job.checkpoint.folder)
        )
        provenance = job.checkpoint.provenance() | {"device": device}
        compared = {name: provenance[name] for name in _COMPARED}
        return cls(job.folder.resolve(), job.question, model, description.revision, compared, threads)

    @cached_property
    def job(self) -> ShardJob:
        """The job of this actor, with the model loaded in the actor's process.

        Raises:
            StoreError: the store does not exist on this machine.
            CheckpointError: the model cannot be loaded, or differs from the model of the run.
        """
        from bert_probe.model.loading import load

        machine = socket.gethostname()
        if not (self.folder / MANIFEST).is_file():
            raise StoreError(
                f"{self.folder} does not exist on {machine}. Choose a path for --out that all machines "
                "of the cluster share."
            )
        torch.set_num_threads(self.threads)
        device, dtype = self.provenance["device"], self.provenance["dtype"]
        checkpoint = load(self.model, self.revision, device, dtype)
        provenance = checkpoint.provenance()
        if different := [name for name in _COMPARED if provenance[name] != self.provenance[name]]:
            raise CheckpointError(
                f"On {machine}, {checkpoint.description.name} has different {', '.join(different)}. "
                "Install the same model and the same versions on all machines of the cluster."
            )
        return ShardJob(self.folder, checkpoint, self.question)

    def run(self, chunk: Chunk) -> Shard | ProbeError:
        """Process a chunk, and return its shard or, if the run cannot continue, the error."""
        try:
            return self.job.run(*chunk)
        except ProbeError as error:
            return error


def run_actors(
    job: ShardJob, chunks: PendingChunks, actor: RayActor, workers: int, gpus: float
) -> Iterator[Shard | ProbeError]:
    """Yield the shard of each chunk as soon as an actor completes it, or the error that ends the run.

    Raises:
        UnavailableError: Ray fails.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    actor_class = ray.remote(RayActor).options(
        num_cpus=actor.threads, num_gpus=gpus, max_restarts=_MAX_RETRIES, max_task_retries=_MAX_RETRIES
    )
    remaining, running = iter(chunks), {}
    free = [actor_class.remote(**vars(actor)) for _ in range(workers)] * _CHUNKS_PER_ACTOR
    try:
        while True:
            for handle, chunk in zip(free, remaining, strict=False):
                running[handle.run.remote(chunk)] = handle, chunk[0]
            if not running:
                return
            done, _ = ray.wait([*running], timeout=_POLL_SECONDS)
            free = [running.pop(task)[0] for task in done]
            for _, number in [] if done else running.values():
                # call the progress callback without progress, so that it can cancel the run
                job.progress_of(number)(0, 0)
            yield from map(ray.get, done)
    except RayTaskError as error:
        raise error.cause from None  # raise the original error instead of Ray's wrapper
    except RayError as error:
        raise UnavailableError(
            f"Ray ended the run: {_first_line(error)}. Complete shards are kept; start the run again "
            "to continue."
        ) from None


@contextmanager
def ready(address: str | None, workers: int) -> Iterator[int]:
    """Connect to Ray, or start it for the duration of a ``with`` block.

    Yields:
        The number of torch threads per worker.

    Raises:
        UnavailableError: Ray cannot be reached, or does not start.
    """
    folder = TemporaryDirectory(prefix="ray-", dir=_SHORT_FOLDER, ignore_cleanup_errors=True)
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}  # turns off telemetry
    if address is None:
        settings["RAY_AUTH_TOKEN"] = _auth_token()
    with folder as temporary_folder, _environment(settings):
        import ray  # Ray reads the environment when it is imported

        if ray.is_initialized():
            yield 1
            return
        threads = 1 if address else threads_per_worker(workers)
        local_settings = {
            "address": "local",
            "num_cpus": workers * threads,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": _LOOPBACK,
            "_temp_dir": temporary_folder,
        }
        try:
            if address:
                ray.init(address, **_QUIET)
            else:
                _start(local_settings)
        except Exception as error:  # Catch all exceptions, because Ray raises many types.
            failure = f"be reached at {address}" if address else "be started"
            raise UnavailableError(f"Ray cannot {failure}: {_first_line(error)}.") from None
        try:
            yield threads
        finally:
            ray.shutdown()


def _start(settings: Mapping[str, Any]) -> None:
    """Start Ray. Retry after a failure, because a busy machine can exceed Ray's time limit of 30 seconds."""
    import ray

    for retries in reversed(range(_MAX_RETRIES)):
        try:
            ray.init(**settings, **_QUIET)
            return
        except Exception:
            ray.shutdown()
            for process in psutil.Process().children():
                with suppress(psutil.Error):
                    if settings["_temp_dir"] in " ".join(process.cmdline()):
                        process.kill()
            if not retries:
                raise


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}

_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Address at which Ray listens on this machine. Ray would replace 127.0.0.1 with the network address of the
machine, which would open its ports to the network."""

_SHORT_FOLDER = "/tmp" if Path("/tmp").is_dir() else None
"""Parent of Ray's temporary folder. Its path is short, because paths of sockets are limited to about 100
bytes."""


@cache
def _auth_token() -> str:
    """Return the token that clients need to connect to Ray. It is cached, because Ray reads it only once."""
    return secrets.token_hex(32)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are not set yet. Remove new RAY_* variables after the ``with`` block.

    Args:
        settings: values of the variables, by name.
    """
    before = dict(os.environ)
    os.environ.update({name: value for name, value in settings.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            if name.startswith("RAY_"):
                del os.environ[name]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
