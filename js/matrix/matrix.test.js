import assert from "node:assert/strict";
import { test } from "node:test";
import { packPayload } from "../core/payload.js";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { colors, measure, RecordingContext, theme } from "../core/testing.js";
import {
  computeMatrixLayout,
  findSpot,
  getVisibleRange,
  layOutAtPitch,
  MAX_ZOOM_PITCH,
  stepZoom,
} from "./layout.js";
import { describeCell, getAxisText, getValue, unpackMatrix } from "./model.js";
import { paintMatrix } from "./paint.js";

const BOX = { width: 800, height: 600 };
/** @type {import("./layout.js").Zoom} */
const AUTO = { mode: "auto", factor: 1 };

/** @param {number} count @param {Record<string, unknown>} more */
function createModel(count, more = {}) {
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
    min: 0,
    max: 0.9,
    ...more,
  };
  const table = new Uint8Array(768);
  return unpackMatrix(packPayload(described, { values, light: table, dark: table }));
}

test("identical labels are sent once for both axes", () => {
  const three = createModel(3);
  assert.deepEqual(three.columnLabels, three.rowLabels);
  assert.equal(three.columnCount, 3);
  assert.ok(Math.abs(getValue(three, 1, 2) - 0.5) < 1e-7);
  assert.equal(describeCell(three, { row: 1, column: 2 }), "t1 (1) → t2: 0.5000");
});

/** Returns the labels of a sequence of residues between two special tokens. @param {number} count */
function createRuler(count) {
  const rows = ["<cls>", ..."M".repeat(count), "<eos>"];
  const numbers = rows.map((_, i) => (i === 0 || i > count ? null : i));
  const ruler = { rowPositions: numbers, columnPositions: numbers, rowRuler: true, columnRuler: true };
  return createModel(count + 2, { ...ruler, rows });
}

test("residues are numbered from 1, and a thinned ruler has round numbers", () => {
  const model = createRuler(1000);
  assert.equal(describeCell(model, { row: 10, column: 0 }), "M10 → <cls>: 0.0000");
  /** @param {import("./layout.js").Zoom["mode"]} mode */
  const read = (mode) => {
    const { columns, rows, pitchY } = computeMatrixLayout(model, BOX, { mode, factor: 1 }, measure);
    const texts = model.rowLabels.map((_, row) => getAxisText(model, "row", row, rows.labelStep));
    return { columns, pitchY, labelStep: rows.labelStep, texts: texts.filter(Boolean) };
  };
  const readable = read("auto");
  assert.equal(readable.labelStep, 1);
  assert.equal(readable.columns.angle, 0, "letters are upright");
  assert.equal(readable.texts.length, 1002);
  const fitted = read("fit");
  assert.ok(fitted.labelStep % 10 === 0 && fitted.labelStep * fitted.pitchY >= 14);
  assert.deepEqual(fitted.texts.slice(0, 2), ["1", String(fitted.labelStep)]);
  assert.equal(fitted.texts.at(-1), "1000");
});

test("a file of a ruler has the number of each tenth residue", () => {
  const model = createRuler(25);
  const geometry = computeMatrixLayout(model, BOX, AUTO, measure);
  const viewport = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
  const pen = new SvgPen(viewport.width, viewport.height, "A", "serif");
  paintMatrix(pen, { model, theme, colors, measure, geometry, ratio: 1, viewport });
  const texts = Array.from(pen.svg.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
  const numbers = texts.filter((text) => /^\d+$/.test(text)).map(Number);
  assert.deepEqual(numbers, [1, 10, 20, 1, 10, 20]);
});

test("a short text fits, with a whole number of pixels per cell", () => {
  const geometry = computeMatrixLayout(createModel(20), BOX, AUTO, measure);
  assert.equal(geometry.pitchX, geometry.pitchY);
  assert.ok(Number.isInteger(geometry.pitchX));
  assert.ok(geometry.contentWidth <= BOX.width);
  assert.ok(geometry.contentHeight <= BOX.height);
});

test("long labels are vertical where slanted ones would be cut off at the right edge", () => {
  const rows = Array.from({ length: 10 }, (_, i) => `a sentence with number ${i}`);
  const model = createModel(10, { rows });
  const wide = computeMatrixLayout(model, BOX, AUTO, measure);
  assert.equal(wide.columns.angle, 45);
  assert.ok(wide.contentWidth <= BOX.width);
  const narrow = computeMatrixLayout(model, { width: 358, height: 600 }, AUTO, measure);
  assert.equal(narrow.columns.angle, 90);
  assert.ok(narrow.contentWidth <= 358);
});

test("a long text scrolls at a readable size, and fits on request", () => {
  const model200 = createModel(200);
  const readable = computeMatrixLayout(model200, BOX, AUTO, measure);
  assert.equal(readable.pitchX, 16);
  assert.ok(readable.contentWidth > BOX.width);
  const fitted = computeMatrixLayout(model200, BOX, { mode: "fit", factor: 1 }, measure);
  assert.ok(fitted.contentWidth <= BOX.width);
  assert.ok(fitted.contentHeight <= BOX.height);
  assert.ok(fitted.columns.labelStep > 1, "labels are thinned");
});

test("numbers at equal distances are thinned by their distances", () => {
  const rows = Array.from({ length: 2048 }, (_, i) => String(4 * i));
  const model = createModel(2048, { rows });
  const {
    columns,
    rows: axis,
    pitchY,
  } = computeMatrixLayout(model, BOX, { mode: "fit", factor: 1 }, measure);
  assert.equal(columns.angle, 0);
  for (const { labelStep } of [columns, axis]) assert.ok((labelStep / 4) * pitchY >= 14);
  const texts = model.rowLabels
    .map((_, row) => getAxisText(model, "row", row, axis.labelStep))
    .filter(Boolean);
  assert.deepEqual(texts.slice(0, 2), ["0", String(axis.labelStep)]);
});

test("names in the width of a column are all visible", () => {
  const six = createModel(6, { rows: ["food", "health", "money", "travel", "weather", "work"] });
  const steps = new Set();
  for (let width = 200; width <= 600; width++) {
    const { columns } = computeMatrixLayout(six, { width, height: 600 }, AUTO, measure);
    if (columns.angle === 0) steps.add(columns.labelStep);
  }
  assert.deepEqual([...steps], [1]);
});

test("a zoom step is at least one pixel, up to a maximum", () => {
  const geometry = computeMatrixLayout(createModel(20), BOX, AUTO, measure);
  assert.ok(stepZoom(geometry, 1.001) * geometry.automatic.x >= geometry.pitchX + 1);
  const large = computeMatrixLayout(createModel(20), BOX, { mode: "free", factor: 99 }, measure);
  assert.equal(large.pitchX, MAX_ZOOM_PITCH);
  assert.equal(layOutAtPitch(createModel(20), measure, geometry, 8).pitchX, 8);
});

test("a point is mapped to a cell or a label", () => {
  const twenty = createModel(20);
  const geometry = computeMatrixLayout(twenty, BOX, AUTO, measure);
  const { left, top, pitchX, pitchY } = geometry;
  const viewport = { x: 0, y: 0, ...BOX };
  const [x, y] = [left + 3.5 * pitchX, top + 7.5 * pitchY];
  assert.deepEqual(findSpot(twenty, geometry, viewport, x, y), { row: 7, column: 3 });
  assert.deepEqual(findSpot(twenty, geometry, { ...viewport, x: pitchX }, x, y), { row: 7, column: 4 });
  assert.deepEqual(findSpot(twenty, geometry, viewport, 3, y), { row: 7, column: null });
  assert.deepEqual(findSpot(twenty, geometry, viewport, x, top - 1), { row: null, column: 3 });
  assert.equal(findSpot(twenty, geometry, viewport, 3, 3), null);
});

test("only visible rows and columns are painted", () => {
  const model200 = createModel(200);
  const geometry = computeMatrixLayout(model200, BOX, AUTO, measure);
  const { left, top } = geometry;
  const range = getVisibleRange(model200, geometry, { x: 32, y: 160, width: left + 160, height: top + 16 });
  assert.deepEqual(range, { rowStart: 10, rowEnd: 11, columnStart: 2, columnEnd: 12 });
  const none = getVisibleRange(model200, geometry, { x: 32, y: 160, width: 0, height: 0 });
  assert.deepEqual(none, { rowStart: 10, rowEnd: 10, columnStart: 2, columnEnd: 2 }, "no width yet");
});

test("a canvas and a file contain the same cells, numbers and labels", () => {
  const four = createModel(4);
  const geometry = computeMatrixLayout(four, BOX, AUTO, measure);
  const viewport = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
  const picture = { model: four, theme, colors, measure, geometry, ratio: 1, viewport };
  const context = new RecordingContext();
  paintMatrix(new CanvasPen(context, "serif", 1), picture);
  const pen = new SvgPen(viewport.width, viewport.height, "A", "serif");
  paintMatrix(pen, picture);
  const cells = context.shapes.filter((shape) => /^rect .* entry-/.test(shape));
  assert.equal(cells.length, 16);
  for (const cell of cells) {
    const [, x, y, width, height, fill] = cell.split(" ");
    assert.ok(pen.svg.includes(`x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"`), cell);
  }
  const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
  const written = Array.from(pen.svg.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
  assert.deepEqual(written, texts);
  assert.equal(texts.filter((text) => /^0\.\d\d$/.test(text)).length, 16);
});

test("marked cells are outlined, unless cells are too small", () => {
  /** @param {number} count @param {number[][]} marked @param {"auto" | "fit"} mode */
  const countStrokes = (count, marked, mode) => {
    const model = createModel(count, { marked });
    const geometry = computeMatrixLayout(model, BOX, { mode, factor: 1 }, measure);
    const viewport = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
    const pen = new SvgPen(viewport.width, viewport.height, "A", "serif");
    paintMatrix(pen, { model, theme, colors, measure, geometry, ratio: 1, viewport });
    return Array.from(pen.svg.matchAll(/<rect [^>]*stroke=/g)).length;
  };
  const marked = [
    [0, 1],
    [3, 2],
  ];
  // Each outline is drawn twice: a background-colored stroke under a stroke in the text color.
  assert.equal(countStrokes(4, marked, "auto") - countStrokes(4, [], "auto"), 4);
  assert.equal(countStrokes(150, marked, "fit"), countStrokes(150, [], "fit"));
});
