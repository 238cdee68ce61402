import assert from "node:assert/strict";
import { test } from "node:test";
import { measure } from "./testing.js";
import {
  ellipsised,
  everyNth,
  formatted,
  isShown,
  plainNumber,
  visibleText,
  widest,
  wrapped,
} from "./text.js";

test("every token can be seen", () => {
  assert.deepEqual(["", " ", "a\tb\n", "\u0000\u202e"].map(visibleText), ["∅", "␣", "a⇥b↵", "\ufffd\ufffd"]);
  assert.equal(visibleText("<b>"), "<b>");
});

test("a text is cut between letters, never within one", () => {
  assert.equal(ellipsised("ground", 36, 12, measure), "ground");
  assert.equal(ellipsised("ground", 30, 12, measure), "grou…");
  assert.equal(ellipsised("😀😀😀", 12, 12, measure), "😀…");
});

test("a caption is wrapped between words, and a long word is cut", () => {
  assert.deepEqual(wrapped("we left the ground", 60, 12, measure), ["we left", "the ground"]);
  assert.deepEqual(wrapped("electroencephalography", 60, 12, measure), ["electroen…"]);
});

test("the widest label counts up to a limit", () => {
  assert.equal(widest(["a", "abc"], 10, measure, 100), 15);
  assert.equal(widest(["a", "abc"], 10, measure, 12), 12);
});

test("labels are thinned to round numbers", () => {
  assert.deepEqual(
    [20, 8, 3, 0.2].map((pitch) => everyNth(384, pitch, 14)),
    [1, 2, 5, 100],
  );
  assert.equal(everyNth(3, 0.001, 14), 5);
  assert.deepEqual(
    ["1", "5", "6", "10"].filter((label, i) => isShown(label, i, 5)),
    ["5", "10"],
  );
  assert.deepEqual(
    ["a", "b", "c"].filter((label, i) => isShown(label, i, 2)),
    ["a", "c"],
  );
});

test("numbers have a minus, and no minus before nothing", () => {
  assert.equal(formatted(-0.25, 2), "−0.25");
  assert.equal(formatted(-0.0001, 2), "0.00");
  assert.equal(formatted(Number.NaN, 2), "no value");
  assert.equal(plainNumber(0.0123456, 2), "0.012");
});
