import assert from "node:assert/strict";
import { test } from "node:test";
import { measure } from "../core/testing.js";
import { computeHeadLayout, findUnit, getAnchor, getVisibleRange } from "./layout.js";

const LABELS = ["[CLS]", "we", "left", "[SEP]"];
const BOX = { width: 800, height: 500 };

/** @param {import("./layout.js").HeadGeometry} geometry */
function showAll(geometry) {
  return { geometry, viewport: { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight } };
}

test("in columns a query and its key have the same height", () => {
  const picture = showAll(computeHeadLayout(LABELS, BOX, { layout: "columns", fit: false }, measure));
  LABELS.forEach((_, index) => {
    const [x, y] = getAnchor(picture, "query", index);
    const [u, v] = getAnchor(picture, "key", index);
    assert.equal(y, v);
    assert.ok(u - x >= 140);
    assert.deepEqual(findUnit(picture, x, y), { side: "query", index });
    assert.deepEqual(findUnit(picture, u, v), { side: "key", index });
    assert.equal(findUnit(picture, (x + u) / 2, y), null, "there is no unit between the sides");
  });
});

test("in reading order a query is above its key", () => {
  const picture = showAll(computeHeadLayout(LABELS, BOX, { layout: "reading", fit: false }, measure));
  LABELS.forEach((_, index) => {
    const [x, y] = getAnchor(picture, "query", index);
    const [u, v] = getAnchor(picture, "key", index);
    assert.equal(x, u);
    assert.ok(v > y);
  });
  const { starts } = picture.geometry;
  assert.ok(starts[2] - starts[1] < starts[1] - starts[0], "a shorter token is narrower");
});

test("a thinned ruler of residues has a step of 10 or more", () => {
  const labels = Array.from({ length: 60 }, () => "M");
  /** @param {boolean} isRuler */
  const step = (isRuler) =>
    computeHeadLayout(labels, BOX, { layout: "columns", fit: true }, measure, isRuler).labelStep;
  assert.deepEqual([step(false), step(true)], [2, 10]);
});

test("a fitted long text does not scroll, and its labels are thinned", () => {
  const labels = Array.from({ length: 400 }, (_, i) => `token${i}`);
  const columns = computeHeadLayout(labels, BOX, { layout: "columns", fit: true }, measure);
  assert.ok(columns.contentHeight <= BOX.height + 1);
  assert.ok(columns.labelStep > 1);
  const reading = computeHeadLayout(labels, BOX, { layout: "reading", fit: true }, measure);
  assert.ok(reading.contentWidth <= BOX.width);
});

test("the visible range contains the units in the viewport", () => {
  const labels = Array.from({ length: 100 }, () => "we");
  const geometry = computeHeadLayout(labels, BOX, { layout: "columns", fit: false }, measure);
  const viewport = { x: 0, y: geometry.starts[10], width: 800, height: 5 * 23 - 1 };
  assert.deepEqual(getVisibleRange({ geometry, viewport }), [10, 15]);
  assert.deepEqual(getVisibleRange(showAll(geometry)), [0, 100]);
});
