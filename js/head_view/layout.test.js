import assert from "node:assert/strict";
import { test } from "node:test";
import { measure } from "../core/testing.js";
import { anchor, headLayout, inView, unitAt } from "./layout.js";

const LABELS = ["[CLS]", "we", "left", "[SEP]"];
const BOX = { width: 800, height: 500 };

/** @param {import("./layout.js").HeadGeometry} geometry */
function whole(geometry) {
  return { geometry, view: { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight } };
}

test("in columns a query and its key stand at the same height", () => {
  const picture = whole(headLayout(LABELS, BOX, { layout: "columns", fit: false }, measure));
  LABELS.forEach((_, index) => {
    const [x, y] = anchor(picture, "query", index);
    const [u, v] = anchor(picture, "key", index);
    assert.equal(y, v);
    assert.ok(u - x >= 140);
    assert.deepEqual(unitAt(picture, x, y), { side: "query", index });
    assert.deepEqual(unitAt(picture, u, v), { side: "key", index });
    assert.equal(unitAt(picture, (x + u) / 2, y), null, "between the sides there is none");
  });
});

test("in reading order a query stands above its key", () => {
  const picture = whole(headLayout(LABELS, BOX, { layout: "reading", fit: false }, measure));
  LABELS.forEach((_, index) => {
    const [x, y] = anchor(picture, "query", index);
    const [u, v] = anchor(picture, "key", index);
    assert.equal(x, u);
    assert.ok(v > y);
  });
  const { starts } = picture.geometry;
  assert.ok(starts[2] - starts[1] < starts[1] - starts[0], "a shorter token takes less");
});

test("fitted, a long text needs no scrolling, and its labels are thinned", () => {
  const many = Array.from({ length: 400 }, (_, i) => `token${i}`);
  const columns = headLayout(many, BOX, { layout: "columns", fit: true }, measure);
  assert.ok(columns.contentHeight <= BOX.height + 1);
  assert.ok(columns.every > 1);
  const reading = headLayout(many, BOX, { layout: "reading", fit: true }, measure);
  assert.ok(reading.contentWidth <= BOX.width);
});

test("only the units that a window shows are in view", () => {
  const many = Array.from({ length: 100 }, () => "we");
  const geometry = headLayout(many, BOX, { layout: "columns", fit: false }, measure);
  const view = { x: 0, y: geometry.starts[10], width: 800, height: 5 * 23 - 1 };
  assert.deepEqual(inView({ geometry, view }), [10, 15]);
  assert.deepEqual(inView(whole(geometry)), [0, 100]);
});
