import assert from "node:assert/strict";
import { test } from "node:test";
import { contrast, luminance, packedColor } from "./color.js";
import {
  CENTRE,
  colorIndexer,
  colorsOf,
  legendSentence,
  legendTicks,
  NO_VALUE,
  placeOnBar,
  tickText,
} from "./scale.js";

/** @type {import("./scale.js").Scale} */
const SHARES = { kind: "sequential", low: 0, high: 1, curve: "sqrt" };
/** @type {import("./scale.js").Scale} */
const DIFFERENCES = { kind: "diverging", low: -2, high: 2, curve: "linear" };

test("a value is an entry of the table, and none beyond its ends", () => {
  const entry = colorIndexer(SHARES);
  assert.deepEqual([0, 0.25, 1, -3, 7].map(entry), [0, 128, 255, 0, 255]);
  assert.equal(entry(Number.NaN), NO_VALUE);
});

test("zero is the centre of a difference, and its ends are those of the table", () => {
  const entry = colorIndexer(DIFFERENCES);
  assert.deepEqual([-2, -1, 0, 1, 2, -9].map(entry), [0, 64, CENTRE, 192, 255, 0]);
  assert.equal(entry(Number.NaN), NO_VALUE);
});

test("a tick lies where the color of its value is", () => {
  assert.deepEqual(legendTicks(SHARES), [0, 0.05, 0.25, 0.5, 1]);
  assert.equal(placeOnBar(SHARES, 0.25), 0.5);
  assert.deepEqual(legendTicks(DIFFERENCES), [-2, -1, 0, 1, 2]);
  assert.deepEqual(
    [-2, 0, 1].map((value) => placeOnBar(DIFFERENCES, value)),
    [0, 0.5, 0.75],
  );
});

test("the legend says what lies beyond its ends", () => {
  const legend = { scale: DIFFERENCES, valueName: "change", below: true, above: false, missing: false };
  assert.equal(tickText(legend, -2), "≤ −2");
  assert.equal(tickText(legend, 2), "2");
  assert.equal(legendSentence(legend), "change, fixed scale −2 to 2");
  const shares = { ...legend, scale: SHARES, valueName: "weight" };
  assert.equal(legendSentence(shares), "weight, fixed scale 0 to 1, square-root colors");
});

test("the ink on a color is the one that reads better", () => {
  const table = new Uint8Array(768);
  table.fill(255, 0, 3);
  const { css, words, inks } = colorsOf(table);
  assert.deepEqual([css[0], css[1]], ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]);
  assert.deepEqual([words[0], words[1]], [0xffffffff, 0xff000000]);
  assert.deepEqual([inks[0], inks[1]], ["rgb(23, 22, 29)", "rgb(255, 255, 255)"]);
});

test("luminance and contrast are those of WCAG", () => {
  assert.equal(luminance([255, 255, 255]), 1);
  assert.ok(Math.abs(luminance([255, 0, 0]) - 0.2126) < 1e-12);
  assert.equal(contrast(0, 1), 21);
  assert.equal(packedColor([1, 2, 3]), 0xff030201);
});
