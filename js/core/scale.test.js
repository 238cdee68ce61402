import assert from "node:assert/strict";
import { test } from "node:test";
import { contrast, luminance, packColor } from "./color.js";
import {
  CENTER,
  computeBarPosition,
  computeTicks,
  createColorIndexer,
  formatLegend,
  formatTick,
  NO_VALUE,
  readColors,
} from "./scale.js";

/** @type {import("./scale.js").Scale} */
const SHARES = { kind: "sequential", low: 0, high: 1, curve: "sqrt" };
/** @type {import("./scale.js").Scale} */
const DIFFERENCES = { kind: "diverging", low: -2, high: 2, curve: "linear" };

test("a value is mapped to a color, clamped to the scale", () => {
  const entry = createColorIndexer(SHARES);
  assert.deepEqual([0, 0.25, 1, -3, 7].map(entry), [0, 128, 255, 0, 255]);
  assert.equal(entry(Number.NaN), NO_VALUE);
});

test("a diverging scale has 0 at its center and the table's ends at its limits", () => {
  const entry = createColorIndexer(DIFFERENCES);
  assert.deepEqual([-2, -1, 0, 1, 2, -9].map(entry), [0, 64, CENTER, 192, 255, 0]);
  assert.equal(entry(Number.NaN), NO_VALUE);
});

test("a tick is at the position of its value's color", () => {
  assert.deepEqual(computeTicks(SHARES), [0, 0.05, 0.25, 0.5, 1]);
  assert.equal(computeBarPosition(SHARES, 0.25), 0.5);
  assert.deepEqual(computeTicks(DIFFERENCES), [-2, -1, 0, 1, 2]);
  assert.deepEqual(
    [-2, 0, 1].map((value) => computeBarPosition(DIFFERENCES, value)),
    [0, 0.5, 0.75],
  );
});

test("the legend marks values beyond its ends", () => {
  const legend = { scale: DIFFERENCES, valueName: "change", below: true, above: false, missing: false };
  assert.equal(formatTick(legend, -2), "≤ −2");
  assert.equal(formatTick(legend, 2), "2");
  assert.equal(formatLegend(legend), "change, fixed scale −2 to 2");
  const shares = { ...legend, scale: SHARES, valueName: "weight" };
  assert.equal(formatLegend(shares), "weight, fixed scale 0 to 1, square-root colors");
});

test("the ink on a color has the better contrast", () => {
  const table = new Uint8Array(768);
  table.fill(255, 0, 3);
  const { css, rgba, inks } = readColors(table);
  assert.deepEqual([css[0], css[1]], ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]);
  assert.deepEqual([rgba[0], rgba[1]], [0xffffffff, 0xff000000]);
  assert.deepEqual([inks[0], inks[1]], ["rgb(23, 22, 29)", "rgb(255, 255, 255)"]);
});

test("luminance and contrast follow WCAG", () => {
  assert.equal(luminance([255, 255, 255]), 1);
  assert.ok(Math.abs(luminance([255, 0, 0]) - 0.2126) < 1e-12);
  assert.equal(contrast(0, 1), 21);
  assert.equal(packColor([1, 2, 3]), 0xff030201);
});
