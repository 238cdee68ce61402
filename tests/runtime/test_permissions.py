"""Test the permissions of the users of a public server."""

from __future__ import annotations

import time

import pytest

from bert_probe.errors import AddressError, NotFoundError, StalledError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.cache import Cache
from bert_probe.runtime.jobs import Job
from bert_probe.runtime.permissions import Permissions


def test_an_app_on_the_users_machine_opens_every_model() -> None:
    assert permissions.current() == Permissions()
    permissions.current().check_model("any/model", "main")
    assert not permissions.current().is_public


@pytest.mark.parametrize(
    ("model", "revision"), [("/etc", ""), ("", "main"), (f"{BUILT_IN}x", ""), ("a/b", ""), ("x" * 9999, "")]
)
def test_a_public_server_opens_its_models_only(model: str, revision: str) -> None:
    allowed = permissions.public()
    allowed.check_model("")
    allowed.check_model(f" {BUILT_IN} ")
    with pytest.raises(NotFoundError, match=rf"not available on this server\. .*: {BUILT_IN}") as caught:
        allowed.check_model(model, revision)
    assert len(str(caught.value)) < 400


def test_default_model_is_the_first_unless_the_built_in_model_is_offered() -> None:
    assert permissions.public([]).default_model == ""
    assert permissions.public(["a/b", BUILT_IN]).default_model == ""
    assert permissions.public([" a/b ", "c", "a/b", ""]).models == ("a/b", "c")
    assert permissions.public(["a/b", "c"]).default_model == "a/b"


def test_too_many_models_and_invalid_origins_are_refused() -> None:
    with pytest.raises(AddressError, match=r"4 models were passed, but .* at most 3"):
        permissions.public(["a", "b", "c", "d"])
    for origin in ("huggingface.co", "https://a.b/c", "https://a.b; script-src *", "*", "https://a b", ""):
        with pytest.raises(AddressError, match="is not an origin"):
            permissions.public(frame_ancestors=[origin])
    allowed = permissions.public(frame_ancestors=["https://huggingface.co", "https://*.hf.space"])
    assert allowed.frame_sources == "'self' https://huggingface.co https://*.hf.space"


def test_pages_api_and_agents_cannot_open_another_model() -> None:
    with permissions.using(permissions.public()), pytest.raises(NotFoundError, match="on this server"):
        shared_cache.open_checkpoint("/etc", "", no_progress)


def test_a_job_ends_at_the_time_limit_of_the_server() -> None:
    def work(progress: Progress) -> None:
        while True:
            progress(0, 0)
            time.sleep(0.001)

    with permissions.using(Permissions(max_job_seconds=0.02)):
        job = Job("cause", work)
        with pytest.raises(StalledError, match="limit of this server"):
            job.value(timeout=10)


def test_a_resized_cache_keeps_its_new_limit() -> None:
    cache: Cache[int, str] = Cache(10, len)
    cache.once(1, lambda: "abcdef")
    cache.resize(4)
    assert cache.contents == (0, 0)
    assert cache.once(1, lambda: "abcdef") == "abcdef"
    assert cache.contents == (0, 0)
    cache.once(2, lambda: "abc")
    assert cache.contents == (1, 3)


def test_permissions_are_restored_after_an_error() -> None:
    with pytest.raises(KeyError), permissions.using(permissions.public()):
        raise KeyError
    assert permissions.current() == Permissions()
