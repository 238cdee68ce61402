"""Shards that processes of Ray work on, of this machine or of a cluster.

The command reads the parts of the inputs and hands each to an actor, which has opened the model once and
writes the shard itself; what comes back is what was written last of it. As many parts are under way as keep
all actors busy, and no more are read, so that memory does not grow with the inputs.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.manifest import MANIFEST
from bert_probe.corpus.store import Shard
from bert_probe.corpus.workers import Part, PendingChunks, ShardJob, threads_of_each
from bert_probe.errors import CheckpointError, ProbeError, StoreError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint

_SAME = ("weights_sha256", "dtype", "device", "libraries")
"""Of a model's provenance, what must be alike in all actors."""
_STORE_BYTES = 200_000_000
"""That Ray holds of parts under way before it puts them on the disk; a part takes some hundred KB."""
_AHEAD = 2
"""Parts of each actor: the one that it works on, and the next."""
_TRIES = 3
"""Of a part whose actor dies, as when the machine's memory is full."""
_BEAT = 0.5
"""Seconds after which somebody who wants the run to end is heard."""


@dataclass(frozen=True)
class RayRunner:
    """Actors of Ray.

    Attributes:
        address: of a cluster, as ``ray.init`` takes it; None for this machine alone, where Ray is started and
            ended again. A Ray that the program has begun itself is used as it is.
        workers: how many, each with one shard at a time. On this machine they share its cores; on a cluster
            each has one.
        num_gpus: of each actor, or a part of one; None for one where the checkpoint is on a GPU, else none.

    Raises:
        UnavailableError: Ray is not installed.
    """

    address: str | None = None
    workers: int = 1
    num_gpus: float | None = None

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            raise UnavailableError(
                'Ray is an extra that is not installed. Run pip install "bert-probe[ray]", or run on local.'
            )

    def device(self, checkpoint: Checkpoint) -> str:
        """A GPU's name in the actor that has it, or the processor.

        Raises:
            UnavailableError: a model in memory, which no other process can open.
        """
        if checkpoint.folder is None:
            raise UnavailableError(
                "A model in memory cannot be opened by other processes. Save it to a folder and open that, "
                "or run on local."
            )
        return "cuda:0" if self._gpus(checkpoint) else "cpu"

    def _gpus(self, checkpoint: Checkpoint) -> float:
        if self.num_gpus is not None:
            return self.num_gpus
        return float(checkpoint.device.type == "cuda")

    def shards(self, job: ShardJob, parts: PendingChunks) -> Generator[Shard]:
        """As they are done; when it is closed, Ray ends what is not.

        Raises:
            UnavailableError: the cluster cannot be reached, or is too small; an actor died again and again.
            StoreError: the folder cannot be written, or is not there on the cluster's machines.
            CheckpointError: these open another model, or have other libraries.
        """
        gpus = self._gpus(job.checkpoint)
        with ready(self.address, self.workers) as threads:
            self._check(threads, gpus)
            work = RayActor.of(job, self.device(job.checkpoint), threads)
            for entry in entries(job, parts, work, self.workers, gpus):
                if isinstance(entry, ProbeError):
                    raise entry
                yield entry

    def _check(self, threads: int, gpus: float) -> None:
        """An actor that finds no room would be waited for without end."""
        import ray

        there = ray.cluster_resources()
        for name, each in (("CPU", threads), ("GPU", gpus)):
            if self.workers * each > there.get(name, 0):
                kind = {"CPU": "cores", "GPU": "GPUs"}[name]
                raise UnavailableError(
                    f"{self.workers} workers need {self.workers * each:g} {kind}, and Ray has "
                    f"{there.get(name, 0):g}. Give fewer --workers, or more machines."
                )


@dataclass(frozen=True)
class RayActor:
    """What works on parts in a process of Ray; it opens the model with the first one.

    Attributes:
        folder: of the store, the same for all.
        model, revision: as `load` takes them.
        provenance: what `_SAME` has to be.
        threads: that it computes with.
    """

    folder: Path
    question: IngestConfig
    model: str | None
    revision: str | None
    provenance: Mapping[str, Any]
    threads: int

    @classmethod
    def of(cls, job: ShardJob, device: str, threads: int) -> RayActor:
        """The actor for a job."""
        about = job.checkpoint.description
        names = {"built-in": None, "hub": about.name}
        model = names.get(about.origin, str(job.checkpoint.folder))
        provenance = job.checkpoint.provenance() | {"device": device}
        same = {name: provenance[name] for name in _SAME}
        return cls(job.folder.resolve(), job.question, model, about.revision, same, threads)

    @cached_property
    def job(self) -> ShardJob:
        """With the model open.

        Raises:
            StoreError: the store is not there on this machine.
            CheckpointError: the model is another one here, or cannot be opened.
        """
        from bert_probe.model.loading import load

        machine = socket.gethostname()
        if not (self.folder / MANIFEST).is_file():
            raise StoreError(
                f"{self.folder} is not there on {machine}. Choose an --out that all machines of the cluster "
                "share."
            )
        torch.set_num_threads(self.threads)
        device, dtype = self.provenance["device"], self.provenance["dtype"]
        checkpoint = load(self.model, self.revision, device, dtype)
        found = checkpoint.provenance()
        if other := [name for name in _SAME if found[name] != self.provenance[name]]:
            raise CheckpointError(
                f"{machine} opens {checkpoint.description.name} with other {', '.join(other)}. Install the "
                "same model and the same versions on all machines of the cluster."
            )
        return ShardJob(self.folder, checkpoint, self.question)

    def found(self, part: Part) -> Shard | ProbeError:
        """The shard of a part, or what is wrong, which the run is ended with."""
        try:
            return self.job.do(*part)
        except ProbeError as error:
            return error


def entries(
    job: ShardJob, parts: PendingChunks, actor: RayActor, workers: int, gpus: float
) -> Iterator[Shard | ProbeError]:
    """What actors make of the parts, as they are done.

    Raises:
        UnavailableError: Ray cannot go on.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    kind = ray.remote(RayActor).options(
        num_cpus=actor.threads, num_gpus=gpus, max_restarts=_TRIES, max_task_retries=_TRIES
    )
    left, busy = iter(parts), {}
    free = [kind.remote(**vars(actor)) for _ in range(workers)] * _AHEAD
    try:
        while True:
            for one, part in zip(free, left, strict=False):
                busy[one.found.remote(part)] = one, part[0]
            if not busy:
                return
            done, _ = ray.wait([*busy], timeout=_BEAT)
            free = [busy.pop(one)[0] for one in done]
            for _, number in [] if done else busy.values():
                job.report_of(number)(0, 0)  # nothing new, but a chance to end the run
            yield from map(ray.get, done)
    except RayTaskError as error:
        raise error.cause from None  # no sentence of ours: as it would end a run without Ray
    except RayError as error:
        raise UnavailableError(
            f"Ray has ended the run: {_line(error)}. What is written stays; run it again to go on."
        ) from None


# Ray itself


@contextmanager
def ready(address: str | None, workers: int) -> Iterator[int]:
    """Ray for the runs within, and how many threads each of its workers has.

    Raises:
        UnavailableError: it cannot be reached, or does not start.
    """
    folder = TemporaryDirectory(prefix="ray-", dir=_SHORT, ignore_cleanup_errors=True)
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}  # nothing is sent to anybody
    if address is None:
        settings["RAY_AUTH_TOKEN"] = _token()
    with folder as own, _environment(settings):
        import ray  # which reads these

        if ray.is_initialized():
            yield 1
            return
        threads = 1 if address else threads_of_each(workers)
        alone = {
            "address": "local",
            "num_cpus": workers * threads,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_node_ip_address": _LOOPBACK,
            "_temp_dir": own,
        }
        try:
            if address:
                ray.init(address, **_QUIET)
            else:
                _start(alone)
        except Exception as error:  # of any type: what it says is all there is
            place = f"be reached at {address}" if address else "be started"
            raise UnavailableError(f"Ray cannot {place}: {_line(error)}.") from None
        try:
            yield threads
        finally:
            ray.shutdown()


def _start(settings: Mapping[str, Any]) -> None:
    """Ray gives itself 30 seconds to start, which a busy machine may exceed: then it is tried again."""
    import ray

    for left in reversed(range(_TRIES)):
        try:
            ray.init(**settings, **_QUIET)
            return
        except Exception:
            ray.shutdown()
            for process in psutil.Process().children():
                with suppress(psutil.Error):
                    if settings["_temp_dir"] in " ".join(process.cmdline()):
                        process.kill()
            if not left:
                raise


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}

_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""For 127.0.0.1 Ray takes the machine's address on a network, where it does not stay within the machine."""

_SHORT = "/tmp" if Path("/tmp").is_dir() else None
"""A folder whose name leaves room for those of Ray's sockets, which may have some hundred bytes."""


@cache
def _token() -> str:
    """Without it nobody else on the network can use the Ray of this process, which reads it once."""
    return secrets.token_hex(32)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Variables that Ray and its processes read; those that are set already stay as they are."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in settings.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            if name.startswith("RAY_"):
                del os.environ[name]


def _line(error: Exception) -> str:
    """What it says first."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
