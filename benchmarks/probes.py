"""Measure probes and relations on the English Web Treebank: ``python -m benchmarks.probes FOLDER``.

FOLDER contains the splits train, dev and test of UD English EWT as .conllu.gz or .conllu files, which are not
part of this project. The expected values were measured with independent code on the built-in model, which
selected heads and offsets on the test split.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import bert_probe
from benchmarks import machine
from benchmarks.pairs import Line
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.tagged_sentences import TaggedSentence

UPOS = (88.9, 92.4, 95.0, 94.9, 94.2, 92.5, 87.1)
"""Expected accuracy of a part-of-speech probe on each layer, in percent."""
WITHIN = 0.7
BEST_LAYER, AT_LEAST = 2, 94.5
SECONDS = 180
HEADS = {"obj": 70.0, "det": 75.0}
"""Relation -> minimum test accuracy in percent of the best head, which is selected on the dev split."""
OFFSETS = {
    "obj": 35.0,
    "det": 57.6,
    "nsubj": 34.5,
    "amod": 74.6,
    "compound": 77.7,
    "aux": 47.1,
    "xcomp": 55.6,
}
"""Relation -> expected accuracy in percent of the baseline that predicts a fixed offset."""
ON_TEST = {
    "obj": 74.0,
    "det": 78.7,
    "nsubj": 59.0,
    "amod": 80.0,
    "compound": 80.7,
    "aux": 66.9,
    "xcomp": 71.3,
}
"""Relation -> test accuracy in percent of the best attention head if it is selected on the test split too."""


def lines(folder: Path) -> Iterator[Line]:
    train, dev, test = (_file(folder, name) for name in ("train", "dev", "test"))
    checkpoint = bert_probe.load()
    yield from _layers(checkpoint, train, test)
    yield from _relations(checkpoint, dev, test)


def _file(folder: Path, name: str) -> tuple[TaggedSentence, ...]:
    for ending in ("conllu.gz", "conllu"):
        if (folder / f"{name}.{ending}").is_file():
            return bert_probe.read_tagged_sentences(folder / f"{name}.{ending}")
    sys.exit(f"{folder} has no {name}.conllu.gz or {name}.conllu. Give a folder with UD English EWT.")


def _layers(
    checkpoint: Checkpoint, train: tuple[TaggedSentence, ...], test: tuple[TaggedSentence, ...]
) -> Iterator[Line]:
    begun, busy = time.perf_counter(), time.process_time()
    result = bert_probe.Probe().of(checkpoint, train, test)
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    accuracies = 100 * result.accuracies
    yield Line(
        "UPOS accuracy of each layer of all-MiniLM-L6-v2, with control task and code length",
        "independent code",
        ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        + f" %; baseline {100 * result.baseline:.1f} %",
        f"each at most {WITHIN} points below; layer {BEST_LAYER} at least {AT_LEAST} %",
        bool((accuracies > np.array(UPOS) - WITHIN).all() and accuracies[BEST_LAYER] >= AT_LEAST),
    )
    yield Line(
        "Selectivity and compression of each layer",
        "independent code",
        f"selectivity {', '.join(f'{100 * value:.1f}' for value in result.selectivities)} points; "
        f"compression {', '.join(f'{compression:.2f}' for compression in result.compressions)} ×",
        "",
        None,
    )
    yield Line(
        f"Run time with {result.counts[0]:,} training words and {result.counts[1]:,} held-out words",
        "wall clock",
        f"{took:.0f} s (processor time {busy:.0f} s)",
        f"at most {SECONDS} s",
        took <= SECONDS,
    )


def _relations(
    checkpoint: Checkpoint, dev: tuple[TaggedSentence, ...], test: tuple[TaggedSentence, ...]
) -> Iterator[Line]:
    result = bert_probe.Relations().of(checkpoint, dev, test)
    for selected in result.best:
        if selected.relation not in ON_TEST:
            continue
        accuracies = result.accuracies[result.relations.index(selected.relation), 0]
        best, accuracy, offset = (
            100 * float(accuracies.max()),
            100 * selected.accuracy,
            100 * selected.offset_accuracy,
        )
        minimum = HEADS.get(selected.relation)
        met = abs(offset - OFFSETS[selected.relation]) < 0.05 and (minimum is None or accuracy >= minimum)
        yield Line(
            f"{selected.relation} ({selected.count:,} in test), selected on dev and evaluated on test",
            f"{ON_TEST[selected.relation]} % if selected on test, offset {OFFSETS[selected.relation]} %",
            f"{accuracy:.1f} %, layer {selected.layer + 1}, head {selected.head + 1}, {selected.direction}; "
            f"selected on test {best:.1f} %; offset {selected.offset:+d} {offset:.1f} %",
            "equal offset accuracy" + (f", at least {minimum:.0f} %" if minimum else ""),
            met,
        )


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("Give the folder of UD English EWT: python -m benchmarks.probes FOLDER.")
    print(machine.table(list(lines(Path(arguments[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
