import assert from "node:assert/strict";
import { test } from "node:test";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { colors, measure, NotingContext, packed, theme } from "../core/testing.js";
import {
  arrangedRows,
  blockSentence,
  cornerOf,
  gridLayout,
  headAt,
  headSentence,
  headUnder,
  marksLabels,
  orderSentence,
  slotOf,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { headImage, paintGrid } from "./paint.js";

/** Two layers of three heads, with thumbnails of two by two cells. */
function model() {
  const described = {
    key: "m",
    chosen: [],
    layerCount: 2,
    headCount: 3,
    side: 2,
    block: 4,
    unit: "tokens",
    unitCount: 8,
    labels: ["", "broad"],
    marked: true,
    axes: "query ↓ · key →",
    measures: ["Entropy"],
    source: "a\u0000b",
  };
  const table = new Uint8Array(768);
  return unpackThumbnails(
    packed(described, {
      light: table,
      dark: table,
      labelled: new Uint16Array([0, 0, 1, 0, 0, 0]),
      numbers: new Float64Array([1, 3, 2, 5, 4, 6]),
      entries: Uint8Array.from({ length: 24 }, (_, i) => i),
    }),
  );
}

const BY_ENTROPY = { ...UNSORTED, measure: "Entropy" };

test("labels are told once and found by each head", () => {
  assert.deepEqual(model().labels, [
    ["", "", "broad"],
    ["", "", ""],
  ]);
  assert.equal(marksLabels(model()), true);
  assert.equal(marksLabels({ ...model(), marked: false }), false);
  assert.equal(model().source, "a\ufffdb");
  assert.equal(blockSentence(model()), "8 tokens: each cell is the largest of 4 × 4 values");
});

test("heads are in the model's order, or largest first", () => {
  /** @param {import("./model.js").Sort} sort */
  const order = (sort) => arrangedRows(model(), sort).map(({ layer, heads }) => [layer, ...heads]);
  assert.deepEqual(order(UNSORTED), [
    [0, 0, 1, 2],
    [1, 0, 1, 2],
  ]);
  assert.deepEqual(order(BY_ENTROPY), [
    [1, 2, 0, 1],
    [0, 1, 2, 0],
  ]);
  assert.deepEqual(order({ ...BY_ENTROPY, layers: false }), [
    [0, 1, 2, 0],
    [1, 2, 0, 1],
  ]);
  assert.equal(orderSentence(UNSORTED), "");
  assert.match(
    orderSentence(BY_ENTROPY),
    /^Sorted by Entropy, largest first: heads .*, layers by their mean$/,
  );
});

test("a point is the head whose thumbnail is drawn there", () => {
  for (const sort of [UNSORTED, BY_ENTROPY]) {
    const rows = arrangedRows(model(), sort);
    const geometry = gridLayout(model(), 400, sort, measure);
    for (const slot of [0, 1].flatMap((row) => [0, 1, 2].map((column) => ({ row, column })))) {
      const which = headAt(rows, slot);
      const { x, y } = cornerOf(geometry, slot);
      assert.deepEqual(headUnder(rows, geometry, x + 1, y + 1), which);
      assert.deepEqual(slotOf(rows, which), slot);
    }
    assert.equal(headUnder(rows, geometry, 0, 0), null);
    assert.equal(headUnder(rows, geometry, 9999, 50), null);
  }
});

test("a head is described by its label and what it is sorted by", () => {
  assert.equal(headSentence(model(), UNSORTED, { layer: 0, head: 2 }), "Layer 1, head 3 · broad");
  assert.equal(
    headSentence(model(), BY_ENTROPY, { layer: 1, head: 0 }),
    "Layer 2, head 1 · no label · Entropy 5.0000",
  );
});

test("an image shows every cell, or where they are finer than pixels the strongest", () => {
  const picture = { model: model(), colors };
  const which = { layer: 0, head: 1 };
  assert.deepEqual([...headImage(picture, which, 2).words], [4, 5, 6, 7]);
  assert.deepEqual([...headImage(picture, which, 1).words], [7]);
  assert.deepEqual([...headImage(picture, which, 3).words], [4, 4, 5, 4, 4, 5, 6, 6, 7]);
});

test("a canvas and a file are given the same frames, marks and numbers", () => {
  const sort = BY_ENTROPY;
  const geometry = gridLayout(model(), 400, sort, measure);
  const picture = { model: model(), theme, colors, rows: arrangedRows(model(), sort), sort, geometry };
  const context = new NotingContext();
  const canvas = new CanvasPen(/** @type {any} */ (context), "serif", 1);
  /** @type {string[]} */
  const images = [];
  canvas.image = (_pixels, { x, y }) => images.push(`${x} ${y}`);
  paintGrid(canvas, picture);
  const pen = new SvgPen(400, 400, "A", "serif", (pixels) => `${pixels.width}`);
  paintGrid(pen, picture);
  const found = Array.from(pen.drawing.matchAll(/<image x="(\S+)" y="(\S+)"/g), ([, x, y]) => `${x} ${y}`);
  assert.deepEqual(found, images);
  assert.equal(images.length, 6);
  assert.equal(pen.drawing.split('href="2"').length, 7, "a pixel a cell, for a reader may enlarge it");
  const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
  const written = Array.from(pen.drawing.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
  assert.deepEqual(written, texts);
  const rectangles = context.shapes.filter((shape) => shape.startsWith("rect"));
  assert.equal(pen.drawing.split("<rect ").length - 1, rectangles.length);
  assert.equal(rectangles.length, 7, "six frames and one mark");
});
