"""What takes seconds to import comes while the browser shows the first things already."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache

from streamlit import delta_generator

from bert_probe.runtime.imports import imported_for_good


def begin() -> None:
    """Import it in a thread of its own, once for the process."""
    # At the first element Streamlit looks whether this is a Python prompt, to warn of it, and for that at the
    # files of all modules: half a second, while thousands are being imported.
    delta_generator._use_warning_has_been_displayed = True
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
            with imported_for_good(), _taking_turns():
                import bert_probe.model.loading
                import bert_probe.ui.overview  # noqa: F401
        except BaseException as error:
            imported.set_exception(error)
        else:
            imported.set_result(None)

    # A daemon, as Ctrl+C should not wait for it.
    threading.Thread(target=work, name="imports", daemon=True).start()
    return imported


@contextmanager
def _taking_turns() -> Iterator[None]:
    """Let threads that answer the browser's first requests have their turn ten times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
