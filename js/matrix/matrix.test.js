import assert from "node:assert/strict";
import { test } from "node:test";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { colors, measure, NotingContext, packed, theme } from "../core/testing.js";
import { atPitch, LARGEST_PITCH, matrixLayout, spotAt, steppedFactor, visibleRange } from "./layout.js";
import { sentence, unpackMatrix, valueAt } from "./model.js";
import { paintMatrix } from "./paint.js";

const BOX = { width: 800, height: 600 };
/** @type {import("./layout.js").Zoom} */
const AUTO = { mode: "auto", factor: 1 };

/** @param {number} count @param {Record<string, unknown>} more */
function model(count, more = {}) {
  const rows = Array.from({ length: count }, (_, i) => `t${i}`);
  const values = Float32Array.from({ length: count * count }, (_, i) => (i % 10) / 10);
  const described = {
    key: "m",
    rows,
    columns: null,
    rowPositions: rows.map((_, i) => i),
    columnPositions: null,
    rowAxis: "query",
    columnAxis: "key",
    valueName: "weight",
    caption: "A",
    decimals: 4,
    square: true,
    whole: false,
    scale: { kind: "sequential", low: 0, high: 1, curve: "linear" },
    least: 0,
    most: 0.9,
    ...more,
  };
  const table = new Uint8Array(768);
  return unpackMatrix(packed(described, { values, light: table, dark: table }));
}

test("labels that are the same come once, and stand for both axes", () => {
  const three = model(3);
  assert.deepEqual(three.columnLabels, three.rowLabels);
  assert.equal(three.columnCount, 3);
  assert.ok(Math.abs(valueAt(three, 1, 2) - 0.5) < 1e-7);
  assert.equal(sentence(three, { row: 1, column: 2 }), "t1 (1) → t2: 0.5000");
});

test("a short text is drawn whole, in cells of whole pixels", () => {
  const geometry = matrixLayout(model(20), BOX, AUTO, measure);
  assert.equal(geometry.pitchX, geometry.pitchY);
  assert.ok(Number.isInteger(geometry.pitchX));
  assert.ok(geometry.contentWidth <= BOX.width);
  assert.ok(geometry.contentHeight <= BOX.height);
});

test("a long one is scrolled at a readable size, and fits when it is told to", () => {
  const many = model(200);
  const readable = matrixLayout(many, BOX, AUTO, measure);
  assert.equal(readable.pitchX, 16);
  assert.ok(readable.contentWidth > BOX.width);
  const fitted = matrixLayout(many, BOX, { mode: "fit", factor: 1 }, measure);
  assert.ok(fitted.contentWidth <= BOX.width);
  assert.ok(fitted.contentHeight <= BOX.height);
  assert.ok(fitted.columns.every > 1, "labels are thinned");
});

test("zooming goes by at least a pixel and ends", () => {
  const geometry = matrixLayout(model(20), BOX, AUTO, measure);
  assert.ok(steppedFactor(geometry, 1.001) * geometry.automatic.x >= geometry.pitchX + 1);
  const large = matrixLayout(model(20), BOX, { mode: "free", factor: 99 }, measure);
  assert.equal(large.pitchX, LARGEST_PITCH);
  assert.equal(atPitch(model(20), measure, geometry, 8).pitchX, 8);
});

test("a point is the cell that is drawn there, or a label", () => {
  const twenty = model(20);
  const geometry = matrixLayout(twenty, BOX, AUTO, measure);
  const { left, top, pitchX, pitchY } = geometry;
  const view = { x: 0, y: 0, ...BOX };
  const [x, y] = [left + 3.5 * pitchX, top + 7.5 * pitchY];
  assert.deepEqual(spotAt(twenty, geometry, view, x, y), { row: 7, column: 3 });
  assert.deepEqual(spotAt(twenty, geometry, { ...view, x: pitchX }, x, y), { row: 7, column: 4 });
  assert.deepEqual(spotAt(twenty, geometry, view, 3, y), { row: 7, column: null });
  assert.deepEqual(spotAt(twenty, geometry, view, x, top - 1), { row: null, column: 3 });
  assert.equal(spotAt(twenty, geometry, view, 3, 3), null);
});

test("only what is in view is drawn", () => {
  const many = model(200);
  const geometry = matrixLayout(many, BOX, AUTO, measure);
  const { left, top } = geometry;
  const range = visibleRange(many, geometry, { x: 32, y: 160, width: left + 160, height: top + 16 });
  assert.deepEqual(range, { rowStart: 10, rowEnd: 11, columnStart: 2, columnEnd: 12 });
});

test("a canvas and a file are given the same cells, numbers and labels", () => {
  const four = model(4);
  const geometry = matrixLayout(four, BOX, AUTO, measure);
  const view = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
  const picture = { model: four, theme, colors, measure, geometry, ratio: 1, view };
  const context = new NotingContext();
  paintMatrix(new CanvasPen(/** @type {any} */ (context), "serif", 1), picture);
  const pen = new SvgPen(view.width, view.height, "A", "serif");
  paintMatrix(pen, picture);
  const cells = context.shapes.filter((shape) => /^rect .* entry-/.test(shape));
  assert.equal(cells.length, 16);
  for (const cell of cells) {
    const [, x, y, width, height, fill] = cell.split(" ");
    assert.ok(
      pen.drawing.includes(`x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"`),
      cell,
    );
  }
  const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
  const written = Array.from(pen.drawing.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
  assert.deepEqual(written, texts);
  assert.equal(texts.filter((text) => /^0\.\d\d$/.test(text)).length, 16);
});
