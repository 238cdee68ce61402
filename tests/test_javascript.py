"""Run the unit tests of the JavaScript, and check that the built files match the sources.

Node's test runner is started here, so that one command runs all tests, in parallel with the others.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.measures import measures
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.views import built
from bert_probe.views.head_view import HeadViewData, payload
from tests.helpers.exactness import assert_rounded
from tests.helpers.javascript import JS, find_node, run
from tests.helpers.traces import packed

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "bert_probe" / "views" / "built"


@pytest.fixture(scope="module")
def node() -> str:
    """Return the path of Node in the development environment, or of an installed one."""
    return find_node()


def test_javascript_unit_tests_pass(node: str) -> None:
    output = run(node, "--test", "--test-reporter=tap")
    passed = re.search(r"^# pass (\d+)$", output, re.M)
    assert passed is not None
    assert int(passed[1]) >= 30, "unit tests were found"


def test_built_files_match_sources(node: str, tmp_path: Path) -> None:
    run(node, "build.js", str(tmp_path))
    fresh = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert fresh.keys() == {path.name for path in BUILT.iterdir()}
    for name, content in fresh.items():
        assert (BUILT / name).read_bytes() == content, f"{name} is not what js/ builds: make build"


MERGED = """
import { readFileSync } from "node:fs";
import { Attention } from "./head_view/attention.js";
import { switchUnits, unpackHeads } from "./head_view/model.js";

const asked = JSON.parse(process.argv[1]);
const found = asked.map(([path, words, head]) => {
  const model = switchUnits(unpackHeads(new Uint8Array(readFileSync(path))), words);
  const attention = new Attention(model);
  attention.prepareColumns([...model.heads.keys()], Infinity);
  const units = [...model.units.keys()];
  return {
    full: model.full,
    rows: units.map((query) => [...attention.getRow(head, query)]),
    columns: units.map((key) => [...attention.getColumn(head, key)]),
  };
});
console.log(JSON.stringify(found));
"""
"""JavaScript that prints the attention in payloads as JSON; its argument is a list of [path, words, head]."""


def test_tokens_and_words_of_payload_match_python(
    node: str, tmp_path: Path, double_minilm: Checkpoint
) -> None:
    requests, expected = [], []
    for times, measure, begun in (
        (1, "weights", False),
        (1, "weights", True),
        (9, "weights", False),
        (9, "value-norm", True),
        (1, "value-zeroing", True),
        (1, "rollout", False),
    ):
        trace = packed(double_minilm.trace("Electroencephalographers left. " * times))
        path = tmp_path / f"{times} {measure} {begun}"
        path.write_bytes(payload(HeadViewData(trace, measure, words=begun), 2, key="k", both=True))
        for words in (False, True):
            for head in (4, "mean") if measures()[measure].of_heads else ("mean",):
                requests.append((str(path), words, head))
                expected.append((trace, measure, words, head))
    merged = json.loads(run(node, "--input-type=module", "--eval", MERGED, json.dumps(requests)))
    for actual, (trace, measure, words, head) in zip(merged, expected, strict=True):
        label = f"{measure}, {words=}, {head=}"
        weights = Attention(2, head, measure, words).of(trace).weights
        # In words and means, the weights of tokens and heads are merged after they were rounded to float32.
        assert_rounded(actual["rows"], weights, 32, label)
        assert_rounded(np.transpose(actual["columns"]), weights, 32, label)
        if measure == "value-norm":
            each = [
                Attention(2, head_index, measure, words).of(trace).weights
                for head_index in range(trace.heads)
            ]
            assert actual["full"] == np.max(each), label
        else:
            assert actual["full"] == (weights.max() if measure == "value-zeroing" else 1), label


PAGES = (*built.FIGURES, "report")
"""Entry points that make complete pages: single components, and reports of several."""


def test_every_component_has_module_and_style() -> None:
    names = {f"{name}.{kind}" for name in built.COMPONENTS for kind in ("js", "css")}
    alone = {"bridge.js", "files.js", *(f"{name}_page.js" for name in PAGES)}
    assert {path.name for path in BUILT.iterdir()} == names | alone
    for name in built.COMPONENTS:
        assert re.search(r"export\{[\w$]+ as default\};\s*$", built.script(name)), "pages import it"


@pytest.mark.parametrize(("path", "table"), [("files.js", "FILES"), ("report/page.js", "MOUNTS")])
def test_files_and_reports_draw_every_figure(path: str, table: str) -> None:
    source = (JS / path).read_text(encoding="utf-8")
    entries = re.search(rf"const {table} = \{{(.*?)\}};", source, re.DOTALL)
    assert entries
    assert sorted(re.findall(r"(\w+):", entries[1])) == sorted(built.FIGURES)


def test_tools_are_pinned_without_registry_urls() -> None:
    package = json.loads((JS / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package, "the browser gets only our own code"
    for name, version in package["devDependencies"].items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} {version} is not pinned"
    lock = (JS / "package-lock.json").read_text(encoding="utf-8")
    assert '"integrity"' in lock
    assert '"resolved"' not in lock, "users have their own registry"
