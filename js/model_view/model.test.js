import assert from "node:assert/strict";
import { test } from "node:test";
import { packPayload } from "../core/payload.js";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { colors, measure, RecordingContext, theme } from "../core/testing.js";
import {
  arrangeRows,
  computeGridLayout,
  describeBlocks,
  describeOrder,
  findHead,
  findSlot,
  formatHead,
  getCorner,
  getHead,
  hasMarkedLabels,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { headImage, paintGrid } from "./paint.js";

/** Returns a model of two layers with three heads each, and thumbnails of two by two cells. */
function createModel() {
  const described = {
    key: "m",
    selected: [],
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
    packPayload(described, {
      light: table,
      dark: table,
      labeled: new Uint16Array([0, 0, 1, 0, 0, 0]),
      numbers: new Float64Array([1, 3, 2, 5, 4, 6]),
      entries: Uint8Array.from({ length: 24 }, (_, i) => i),
    }),
  );
}

const BY_ENTROPY = { ...UNSORTED, measure: "Entropy" };

test("each head gets its label from the list of distinct labels", () => {
  assert.deepEqual(createModel().labels, [
    ["", "", "broad"],
    ["", "", ""],
  ]);
  assert.equal(hasMarkedLabels(createModel()), true);
  assert.equal(hasMarkedLabels({ ...createModel(), marked: false }), false);
  assert.equal(createModel().source, "a\ufffdb");
  assert.equal(describeBlocks(createModel()), "8 tokens: each cell is the largest of 4 × 4 values");
});

test("heads are in the model's order or sorted in descending order", () => {
  /** @param {import("./model.js").Sort} sort */
  const order = (sort) => arrangeRows(createModel(), sort).map(({ layer, heads }) => [layer, ...heads]);
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
  assert.equal(describeOrder(UNSORTED), "");
  assert.match(
    describeOrder(BY_ENTROPY),
    /^Sorted by Entropy, largest first: heads .*, layers by their mean$/,
  );
});

test("a point is mapped to the head whose thumbnail contains it", () => {
  for (const sort of [UNSORTED, BY_ENTROPY]) {
    const rows = arrangeRows(createModel(), sort);
    const geometry = computeGridLayout(createModel(), 400, sort, measure);
    for (const slot of [0, 1].flatMap((row) => [0, 1, 2].map((column) => ({ row, column })))) {
      const headIndex = getHead(rows, slot);
      const { x, y } = getCorner(geometry, slot);
      assert.deepEqual(findHead(rows, geometry, x + 1, y + 1), headIndex);
      assert.deepEqual(findSlot(rows, headIndex), slot);
    }
    assert.equal(findHead(rows, geometry, 0, 0), null);
    assert.equal(findHead(rows, geometry, 9999, 50), null);
  }
});

test("a head is described by its label and its sort key", () => {
  assert.equal(formatHead(createModel(), UNSORTED, { layer: 0, head: 2 }), "Layer 1, head 3 · broad");
  assert.equal(
    formatHead(createModel(), BY_ENTROPY, { layer: 1, head: 0 }),
    "Layer 2, head 1 · no label · Entropy 5.0000",
  );
});

test("an image shows every cell, or the strongest one in each pixel", () => {
  const picture = { model: createModel(), colors };
  const headIndex = { layer: 0, head: 1 };
  assert.deepEqual([...headImage(picture, headIndex, 2).rgba], [4, 5, 6, 7]);
  assert.deepEqual([...headImage(picture, headIndex, 1).rgba], [7]);
  assert.deepEqual([...headImage(picture, headIndex, 3).rgba], [4, 4, 5, 4, 4, 5, 6, 6, 7]);
});

test("a canvas and a file contain the same frames, marks and numbers", () => {
  const sort = BY_ENTROPY;
  const geometry = computeGridLayout(createModel(), 400, sort, measure);
  const picture = {
    model: createModel(),
    theme,
    colors,
    rows: arrangeRows(createModel(), sort),
    sort,
    geometry,
  };
  const context = new RecordingContext();
  const canvas = new CanvasPen(context, "serif", 1);
  /** @type {string[]} */
  const images = [];
  canvas.image = (_pixels, { x, y }) => images.push(`${x} ${y}`);
  paintGrid(canvas, picture);
  const pen = new SvgPen(400, 400, "A", "serif", (pixels) => `${pixels.width}`);
  paintGrid(pen, picture);
  const positions = Array.from(pen.svg.matchAll(/<image x="(\S+)" y="(\S+)"/g), ([, x, y]) => `${x} ${y}`);
  assert.deepEqual(positions, images);
  assert.equal(images.length, 6);
  assert.equal(pen.svg.split('href="2"').length, 7, "one pixel per cell, because an SVG may be enlarged");
  const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
  const written = Array.from(pen.svg.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
  assert.deepEqual(written, texts);
  const rectangles = context.shapes.filter((shape) => shape.startsWith("rect"));
  assert.equal(pen.svg.split("<rect ").length - 1, rectangles.length);
  assert.equal(rectangles.length, 7, "six frames and one mark");
});
