"""Permissions and limits for the users of a server, shared by pages, routes and the API.

An app on the user's own machine has the default `Permissions`; a public server has those that `public`
returns.
Pages, routes and schemas omit excluded features, and the server rejects requests for these features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from bert_probe.errors import AddressError, NotFoundError
from bert_probe.model.sources import BUILT_IN

MAX_MODELS: Final = 3
"""Maximum number of models of a public server, because all of them stay in memory."""
MAX_BODY_BYTES: Final = 5_000_000
"""Maximum size of a request body, and of a file that is uploaded to a page, in bytes."""
MAX_BODY_SECONDS: Final = 10.0
"""Time limit for receiving a request body, in seconds. A request counts towards `MAX_REQUESTS` only after
its body has arrived.
"""
MAX_CLIENT_BYTES: Final = 40_000_000
"""Maximum total size of the request bodies that are arriving from one client, in bytes."""
MAX_INCOMING_BYTES: Final = 160_000_000
"""Maximum total size of the request bodies that are arriving from all clients, in bytes."""
MAX_TEXTS: Final = 100
"""Maximum number of texts in a request that compares texts with each other."""
MAX_SENTENCES: Final = 1_000
"""Maximum number of sentences in a request, which equals the limit on the pages. The result may compare
each sentence with every other sentence.
"""
MAX_LIST_LINES, MAX_FILE_LINES = 50_000, 200_000
"""Maximum number of lines of a file of sentences or documents in a request, and of other files. A row takes
several hundred bytes, even if it has only four.
"""
MAX_NAME_LENGTH: Final = 1_000
"""Maximum length of the name of a model, a revision or a file, in characters."""
MAX_CELLS: Final = 5_000_000
"""Maximum number of cells of a table; the command line writes larger tables to a file in parts."""
MAX_TABLE_CHARACTERS: Final = 50_000_000
"""Maximum number of characters of the texts in a table, in which a text can be repeated many times."""
MAX_ANSWER_SECONDS: Final = 120.0
"""Time limit for an answer, in seconds. After this time, work that reports progress is cancelled. All other
work continues, although its client has received an error.
"""
MAX_REQUESTS: Final = 32
"""Maximum number of requests that are computed or queued; further requests are rejected with
status 503.
"""
_ORIGIN: Final = re.compile(r"https?://(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]{1,5})?", re.IGNORECASE)
_MAX_NAME: Final = 100


@dataclass(frozen=True)
class Permissions:
    """Permissions of a server's users. The defaults suit an app on the user's own machine."""

    models: tuple[str, ...] = ()  # models that can be opened; () allows every folder and Hub ID
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    can_train: bool = True
    # whether files, such as converted models, can be saved outside of temporary folders
    can_write_files: bool = True
    can_build_stores: bool = True  # building stores, and opening those in the default folder
    has_api: bool = True
    max_file_bytes: int = 5_000_000  # size limit of an uploaded file, a pasted text or a request body
    max_session_bytes: int = 20_000_000  # limit of the total size of a session's uploaded files
    max_client_bytes: int = 100_000_000  # limit of the total size of the files uploaded from an IP address
    max_upload_bytes: int = 200_000_000  # limit of the total size of all uploaded files
    trace_bytes: int = 1_000_000_000  # size limit of the trace cache
    page_trace_bytes: int | None = None  # size limit of the traces that open pages use; None for no limit
    client_trace_bytes: int | None = None  # the same for the pages of one client
    task_bytes: int | None = None  # size limit of the vectors of a single task
    max_job_seconds: float | None = None
    max_sessions: int | None = None
    max_client_sessions: int | None = None  # limit of concurrent sessions from an IP address
    requests_per_minute: int | None = None  # limit of HTTP requests from an IP address
    runs_per_minute: int | None = None  # limit of script runs and API requests from an IP address
    trusted_proxies: int = 0  # number of proxies that append an address to X-Forwarded-For
    frame_ancestors: tuple[str, ...] = ()  # origins whose pages may contain the app in a frame

    @property
    def is_public(self) -> bool:
        """Return whether the server is public."""
        return bool(self.models)

    @property
    def default_model(self) -> str:
        """Return the model for requests that do not name a model; "" for the built-in model."""
        return "" if not self.models or BUILT_IN in self.models else self.models[0]

    def allows(self, model: str, revision: str = "") -> bool:
        """Return whether a model can be opened.

        Every model can be opened if `models` is empty; otherwise, only these, in their default revision.

        Args:
            model: name of the model; "" is the built-in model.
            revision: name of the revision; "" is the default revision.
        """
        return not self.models or ((model.strip() or BUILT_IN) in self.models and not revision)

    def check_model(self, model: str, revision: str = "", dtype: str = "float32") -> None:
        """Raise NotFoundError unless the model can be opened in this data type."""
        if self.is_public and dtype not in self.dtypes:
            raise NotFoundError(
                f"{_shorten(dtype)!r} is not available on this server. Choose {' or '.join(self.dtypes)}. To "
                "use other data types, install BERT Probe on your machine."
            )
        if not self.allows(model, revision):
            name = f"{model.strip() or BUILT_IN}{f' at {revision}' if revision else ''}"
            raise NotFoundError(
                f"{_shorten(name)!r} is not available on this server. Choose one of the available "
                f"models: {', '.join(self.models)}. To open other models, install BERT Probe on your "
                "machine."
            )

    @property
    def frame_sources(self) -> str:
        """Return the value of the CSP directive frame-ancestors."""
        return " ".join(("'self'", *self.frame_ancestors))


def client_name(address: str) -> str:
    """Return the name under which limits count a client: its IPv4 address, or its /64 IPv6 network.

    Args:
        address: IP address of the client; other strings, such as "" for a Unix socket, are returned as they
            are.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return address


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"


def public(
    models: Sequence[str] = (),
    frame_ancestors: Sequence[str] = (),
    trusted_proxies: int = 0,
    has_api: bool = False,
) -> Permissions:
    """Return the permissions of a public server.

    Args:
        models: models that can be opened; by default the built-in model.
        frame_ancestors: origins whose pages may contain the app in a frame, such as https://huggingface.co.
        trusted_proxies: number of proxies between the users and the server; each appends the address of its
            client to the header X-Forwarded-For.
        has_api: whether the server has the HTTP API, for clients with its token.

    Raises:
        AddressError: there are too many models, or an origin is invalid.
    """
    names = tuple(dict.fromkeys(name.strip() for name in models if name.strip())) or (BUILT_IN,)
    if len(names) > MAX_MODELS:
        raise AddressError(
            f"{len(names)} models were passed, but a public server keeps at most {MAX_MODELS} in memory. "
            "Pass fewer models with --models."
        )
    for origin in frame_ancestors:
        if not _ORIGIN.fullmatch(origin):
            raise AddressError(
                f"{_shorten(origin)!r} is not an origin. Pass the scheme and the host name without a path: "
                "--frame-ancestors https://huggingface.co"
            )
    return Permissions(
        models=names,
        dtypes=("float32",),
        can_train=False,
        can_write_files=False,
        can_build_stores=False,
        has_api=has_api,
        max_file_bytes=1_000_000,
        max_session_bytes=4_000_000,
        max_client_bytes=20_000_000,
        max_upload_bytes=100_000_000,
        trace_bytes=300_000_000,
        page_trace_bytes=500_000_000,
        client_trace_bytes=250_000_000,
        task_bytes=250_000_000,
        max_job_seconds=120.0,
        max_sessions=100,
        max_client_sessions=60,
        requests_per_minute=1_200,
        runs_per_minute=240,
        trusted_proxies=trusted_proxies,
        frame_ancestors=tuple(frame_ancestors),
    )


_current = Permissions()


def current() -> Permissions:
    """Return the permissions of the users of this process."""
    return _current


def set_current(permissions: Permissions) -> None:
    """Set the permissions of the users of this process. Call this before the server starts."""
    global _current
    _current = permissions


@contextmanager
def using(permissions: Permissions) -> Iterator[None]:
    """Within the context, replace the permissions in all threads."""
    before = _current
    set_current(permissions)
    try:
        yield
    finally:
        set_current(before)
