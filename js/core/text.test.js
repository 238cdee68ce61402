import assert from "node:assert/strict";
import { test } from "node:test";
import { measure } from "./testing.js";
import {
  computeLabelStep,
  formatNumber,
  formatShort,
  isLabelVisible,
  makeVisible,
  measureWidest,
  truncateText,
  wrapText,
} from "./text.js";

test("every token is visible", () => {
  assert.deepEqual(["", " ", "a\tb\n", "\u0000\u202e"].map(makeVisible), ["∅", "␣", "a⇥b↵", "\ufffd\ufffd"]);
  assert.equal(makeVisible("<b>"), "<b>");
});

test("a text is truncated between code points", () => {
  assert.equal(truncateText("ground", 36, 12, measure), "ground");
  assert.equal(truncateText("ground", 30, 12, measure), "grou…");
  assert.equal(truncateText("😀😀😀", 12, 12, measure), "😀…");
});

test("a caption wraps between words, and a long word is truncated", () => {
  assert.deepEqual(wrapText("we left the ground", 60, 12, measure), ["we left", "the ground"]);
  assert.deepEqual(wrapText("electroencephalography", 60, 12, measure), ["electroen…"]);
});

test("the width of the widest label is limited", () => {
  assert.equal(measureWidest(["a", "abc"], 10, measure, 100), 15);
  assert.equal(measureWidest(["a", "abc"], 10, measure, 12), 12);
});

test("labels are thinned to round numbers", () => {
  assert.deepEqual(
    [20, 8, 3, 0.2].map((pitch) => computeLabelStep(384, pitch, 14)),
    [1, 2, 5, 100],
  );
  assert.equal(computeLabelStep(3, 0.001, 14), 5);
  assert.deepEqual(
    ["1", "5", "6", "10"].filter((label, i) => isLabelVisible(label, i, 5)),
    ["5", "10"],
  );
  assert.deepEqual(
    ["a", "b", "c"].filter((label, i) => isLabelVisible(label, i, 2)),
    ["a", "c"],
  );
});

test("negative numbers have a minus sign, and zero has none", () => {
  assert.equal(formatNumber(-0.25, 2), "−0.25");
  assert.equal(formatNumber(-0.0001, 2), "0.00");
  assert.equal(formatNumber(Number.NaN, 2), "no value");
  assert.equal(formatShort(0.0123456, 2), "0.012");
});
