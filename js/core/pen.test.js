import assert from "node:assert/strict";
import { test } from "node:test";
import { CanvasPen, escaped, SvgPen } from "./pen.js";
import { NotingContext } from "./testing.js";

const HOSTILE = `</text><script>alert("1")</script>&\u0000\ud800`;

/** What an SVG holds of the shapes that a canvas would note. @param {SvgPen} pen */
function shapesOf(pen) {
  const found = pen.drawing.matchAll(/<(rect|path|text) ([^>]*?)\/?>(?:([^<]*)<\/text>)?/g);
  return Array.from(found, ([, name, written, content]) => {
    const at = Object.fromEntries(
      Array.from(written.matchAll(/([\w-]+)="([^"]*)"/g), ([, key, value]) => [key, value]),
    );
    const color = at.stroke ?? at.fill;
    if (name === "text") return `text ${content} ${color}`;
    if (name === "path") return `path ${at.d} ${color}`;
    return `rect ${at.x} ${at.y} ${at.width} ${at.height} ${color}`;
  });
}

/** The same strokes with both pens. @param {(pen: import("./pen.js").Pen) => void} paint */
function both(paint) {
  const context = new NotingContext();
  paint(new CanvasPen(/** @type {any} */ (context), "serif", 1));
  const pen = new SvgPen(100, 100, "A picture", "serif");
  paint(pen);
  return [context.shapes, shapesOf(pen)];
}

test("a canvas and an SVG are given the same shapes", () => {
  const [drawn, written] = both((pen) => {
    pen.rectangle(1, 2, 3, 4, { fill: "red" });
    pen.rectangle(1, 2, 3, 4, { stroke: "blue", line: 2 });
    pen.rectangle(5, 6, 7, 8, { fill: "green", radius: 4, alpha: 0.5 });
    pen.path(
      (path) => {
        path.moveTo(0, 1);
        path.lineTo(2, 3);
        path.bezierCurveTo(1, 2, 3, 4, 5, 6);
      },
      { stroke: "black" },
    );
    pen.clipped({ x: 0, y: 0, width: 9, height: 9 }, () =>
      pen.text("ground", 1, 2, { size: 12, fill: "ink" }),
    );
    pen.moved(10, 20, -45, () =>
      pen.text("left", 0, 0, { size: 12, fill: "ink", anchor: "end", middle: true }),
    );
  });
  const clip = written.indexOf("rect 0 0 9 9 undefined");
  assert.deepEqual(written.toSpliced(clip, 1), drawn);
  assert.equal(drawn.length, 6);
});

test("what a person wrote is escaped wherever it is written", () => {
  const pen = new SvgPen(10, 10, HOSTILE, HOSTILE, () => HOSTILE);
  pen.text(HOSTILE, 0, 0, { size: 12, fill: HOSTILE });
  pen.image({ width: 1, height: 1, words: new Uint32Array(1) }, { x: 0, y: 0, width: 1, height: 1 }, HOSTILE);
  assert.equal(
    escaped(HOSTILE),
    `&lt;/text&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\ufffd\ufffd`,
  );
  assert.equal(pen.drawing.split(escaped(HOSTILE)).length, 7);
  assert.doesNotMatch(pen.drawing, /<script/);
});

test("a text is held to the width that it had on the page", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  pen.text("ground", 0, 10, { size: 12, fill: "ink", width: 33.2, middle: true });
  assert.match(pen.drawing, /y="14.2".*textLength="34"/);
});

test("hatching is one pattern, however many cells have no value", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  for (const x of [0, 5]) pen.hatched({ x, y: 0, width: 5, height: 5 }, ["white", "gray"]);
  assert.equal(pen.drawing.split("<pattern ").length, 2);
  assert.equal(pen.drawing.split("<title>no value</title>").length, 3);
});

test("groups are closed in their order", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  pen.moved(1, 2, 0, () => pen.seamless(() => pen.rectangle(0, 0, 1, 1, { fill: "red" })));
  assert.match(pen.drawing, /<g transform="translate\(1 2\)">\n<g shape.*>\n<rect .*\n<\/g>\n<\/g>\n<\/svg>/);
});
