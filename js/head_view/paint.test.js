import assert from "node:assert/strict";
import { test } from "node:test";
import { CanvasPen, SvgPen } from "../core/pen.js";
import { measure, NotingContext, packed, theme } from "../core/testing.js";
import { MEAN } from "../core/view.js";
import { headLayout } from "./layout.js";
import { unpackHeads } from "./model.js";
import { paintChosen, paintHeads } from "./paint.js";

/** @param {"columns" | "reading"} layout */
function pictureOf(layout) {
  const model = unpackHeads(
    packed(
      { heads: [0, 1], texts: ["[CLS]", "we", "<left>"], tokenCount: 3, scaling: 1, full: 1 },
      {
        firsts: new Uint16Array([0, 1, 2]),
        segments: new Uint8Array([0, 0, 1]),
        specials: new Uint8Array([1, 0, 0]),
        weights: new Float32Array(18),
      },
    ),
  );
  const shown = [0, 1, 2];
  const geometry = headLayout(model.names, { width: 600, height: 400 }, { layout, fit: false }, measure);
  const view = { x: 0, y: 0, width: geometry.contentWidth, height: geometry.contentHeight };
  return { model, theme, measure, geometry, shown, places: new Map(shown.map((unit) => [unit, unit])), view };
}

/** @type {import("./lines.js").Line[]} */
const LINES = [
  { head: 0, query: 0, key: 1, weight: 0.9 },
  { head: 0, query: 1, key: 2, weight: 0.9 },
  { head: 1, query: 2, key: 0, weight: 0.1 },
  { head: MEAN, query: 2, key: 1, weight: 0.1 },
];

for (const layout of /** @type {const} */ (["columns", "reading"])) {
  test(`a canvas and a file are given the same lines and labels, ${layout}`, () => {
    const picture = pictureOf(layout);
    const chosen = {
      side: /** @type {const} */ ("query"),
      units: [1],
      targets: [0, 1, 2],
      lines: LINES.slice(1, 2),
      mean: new Float64Array([0, 0.1, 0.9]),
      color: "teal",
    };
    const context = new NotingContext();
    const pen = new SvgPen(picture.view.width, picture.view.height, "A", "serif");
    for (const one of [new CanvasPen(/** @type {any} */ (context), "serif", 1), pen]) {
      paintHeads(one, picture, LINES, new Map());
      paintChosen(one, picture, chosen);
    }
    const texts = context.shapes.flatMap((shape) => /^text (.*) \w+$/.exec(shape)?.[1] ?? []);
    const written = Array.from(pen.drawing.matchAll(/<text [^>]*>([^<]*)</g), ([, text]) => text);
    assert.deepEqual(
      written.map((text) => text.replace("&lt;", "<").replace("&gt;", ">")),
      texts,
    );
    assert.ok(texts.includes("0.90"));
    const curves = context.shapes.filter((shape) => shape.startsWith("path"));
    const paths = Array.from(pen.drawing.matchAll(/<path d="([^"]*)"[^>]*stroke="([^"]*)"/g));
    assert.deepEqual(
      paths.map(([, d, stroke]) => `path ${d} ${stroke}`),
      curves,
    );
    assert.equal(curves.length, 4, "one for each head and strength, and one for what is chosen");
    assert.equal(curves[2].split("C").length, 3, "two lines of one strength are one path");
  });
}
