import assert from "node:assert/strict";
import { test } from "node:test";
import { packPayload } from "../core/payload.js";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { MEAN } from "../core/selection.js";
import { measure, RecordingContext, theme } from "../core/testing.js";
import { computeHeadLayout } from "./layout.js";
import { unpackHeads } from "./model.js";
import { paintActive, paintHeads } from "./paint.js";

/** @param {"columns" | "reading"} layout */
function createPicture(layout) {
  const model = unpackHeads(
    packPayload(
      { heads: [0, 1], texts: ["[CLS]", "we", "<left>"], tokenCount: 3, scaling: 1, full: 1 },
      {
        firsts: new Uint16Array([0, 1, 2]),
        segments: new Uint8Array([0, 0, 1]),
        specials: new Uint8Array([1, 0, 0]),
        weights: new Float32Array(18),
      },
    ),
  );
  const units = [0, 1, 2];
  const geometry = computeHeadLayout(
    model.names,
    { width: 600, height: 400 },
    { layout, fit: false },
    measure,
  );
  const viewport = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
  const unitIndices = new Map(units.map((unit) => [unit, unit]));
  return { model, theme, measure, geometry, units, unitIndices, viewport };
}

/** @type {import("./lines.js").Line[]} */
const LINES = [
  { head: 0, query: 0, key: 1, weight: 0.9 },
  { head: 0, query: 1, key: 2, weight: 0.9 },
  { head: 1, query: 2, key: 0, weight: 0.1 },
  { head: MEAN, query: 2, key: 1, weight: 0.1 },
];

for (const layout of /** @type {const} */ (["columns", "reading"])) {
  test(`a canvas and a file contain the same lines and labels: ${layout}`, () => {
    const picture = createPicture(layout);
    const active = {
      side: /** @type {const} */ ("query"),
      units: [1],
      targets: [0, 1, 2],
      lines: LINES.slice(1, 2),
      mean: new Float64Array([0, 0.1, 0.9]),
      color: "teal",
    };
    const context = new RecordingContext();
    const pen = new SvgPen(picture.viewport.width, picture.viewport.height, "A", "serif");
    for (const target of [new CanvasPen(context, "serif", 1), pen]) {
      paintHeads(target, picture, LINES, new Map());
      paintActive(target, picture, active);
    }
    const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
    const written = Array.from(pen.svg.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
    assert.deepEqual(
      written.map((text) => text.replace("&lt;", "<").replace("&gt;", ">")),
      texts,
    );
    assert.ok(texts.includes("0.90"));
    const curves = context.shapes.filter((shape) => shape.startsWith("path"));
    const paths = Array.from(pen.svg.matchAll(/<path d="([^"]*)"[^>]*stroke="([^"]*)"/g));
    assert.deepEqual(
      paths.map(([, d, stroke]) => `path ${d} ${stroke}`),
      curves,
    );
    assert.equal(curves.length, 4, "one path per head and opacity, and one for the active unit");
    assert.equal(curves[2].split("C").length, 3, "lines of the same opacity are one path");
  });
}
