"""What takes seconds to import comes while the browser shows the first things already."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import cache


def begin() -> None:
    """Import it in a thread of its own, once for the process."""
    _begun()


def wait() -> None:
    """Until it is imported; what went wrong with that is raised here."""
    _begun().result()


def is_done() -> bool:
    """Whether `wait` would return at once."""
    return _begun().done()


@cache
def _begun() -> Future[None]:
    imported: Future[None] = Future()

    def work() -> None:
        try:
            # What opens a model, and what the front page is made of.
            import bert_probe.model.loading
            import bert_probe.web.attention.head  # noqa: F401
        except BaseException as error:
            imported.set_exception(error)
        else:
            imported.set_result(None)

    # A daemon, as Ctrl+C should not wait for it.
    threading.Thread(target=work, name="imports", daemon=True).start()
    return imported
