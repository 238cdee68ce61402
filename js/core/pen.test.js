import assert from "node:assert/strict";
import { test } from "node:test";
import { CanvasPen, escapeXml, SvgPen } from "./pen.js";
import { RecordingContext } from "./testing.js";

const HOSTILE = `</text><script>alert("1")</script>&\u0000\ud800`;

/** Returns the shapes of an SVG in the form in which the test canvas records them. @param {SvgPen} pen */
function shapesOf(pen) {
  const matches = pen.svg.matchAll(/<(rect|path|text) ([^>]*?)\/?>(?:([^<]*)<\/text>)?/g);
  return Array.from(matches, ([, name, written, content]) => {
    const attributes = Object.fromEntries(
      Array.from(written.matchAll(/([\w-]+)="([^"]*)"/g), ([, key, value]) => [key, value]),
    );
    const color = attributes.stroke ?? attributes.fill;
    if (name === "text") return `text ${content} ${color}`;
    if (name === "path") return `path ${attributes.d} ${color}`;
    return `rect ${attributes.x} ${attributes.y} ${attributes.width} ${attributes.height} ${color}`;
  });
}

/** Asserts that both pens draw the same shapes. @param {(pen: import("./pen.js").Pen) => void} paint */
function paintBoth(paint) {
  const context = new RecordingContext();
  paint(new CanvasPen(context, "serif", 1));
  const pen = new SvgPen(100, 100, "A picture", "serif");
  paint(pen);
  return [context.shapes, shapesOf(pen)];
}

test("a canvas and an SVG contain the same shapes", () => {
  const [canvasShapes, svgShapes] = paintBoth((pen) => {
    pen.rectangle(1, 2, 3, 4, { fill: "red" });
    pen.rectangle(1, 2, 3, 4, { stroke: "blue", lineWidth: 2 });
    pen.rectangle(5, 6, 7, 8, { fill: "green", radius: 4, alpha: 0.5 });
    pen.path(
      (path) => {
        path.moveTo(0, 1);
        path.lineTo(2, 3);
        path.bezierCurveTo(1, 2, 3, 4, 5, 6);
      },
      { stroke: "black" },
    );
    pen.clip({ x: 0, y: 0, width: 9, height: 9 }, () => pen.text("ground", 1, 2, { size: 12, fill: "ink" }));
    pen.transform(10, 20, -45, () =>
      pen.text("left", 0, 0, { size: 12, fill: "ink", anchor: "end", isCentered: true }),
    );
  });
  const clip = svgShapes.indexOf("rect 0 0 9 9 undefined");
  assert.deepEqual(svgShapes.toSpliced(clip, 1), canvasShapes);
  assert.equal(canvasShapes.length, 6);
});

test("user text is escaped everywhere", () => {
  const pen = new SvgPen(10, 10, HOSTILE, HOSTILE, () => HOSTILE);
  pen.text(HOSTILE, 0, 0, { size: 12, fill: HOSTILE });
  pen.image({ width: 1, height: 1, rgba: new Uint32Array(1) }, { x: 0, y: 0, width: 1, height: 1 }, HOSTILE);
  assert.equal(
    escapeXml(HOSTILE),
    `&lt;/text&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\ufffd\ufffd`,
  );
  assert.equal(pen.svg.split(escapeXml(HOSTILE)).length, 7);
  assert.doesNotMatch(pen.svg, /<script/);
});

test("a text is fitted to its width on the page", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  pen.text("ground", 0, 10, { size: 12, fill: "ink", width: 33.2, isCentered: true });
  assert.match(pen.svg, /y="14.2".*textLength="34"/);
});

test("hatching is defined once for all cells without a value", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  for (const x of [0, 5]) pen.hatch({ x, y: 0, width: 5, height: 5 }, ["white", "gray"]);
  assert.equal(pen.svg.split("<pattern ").length, 2);
  assert.equal(pen.svg.split("<title>no value</title>").length, 3);
});

test("groups are closed in order", () => {
  const pen = new SvgPen(10, 10, "", "serif");
  pen.transform(1, 2, 0, () => pen.paintSeamless(() => pen.rectangle(0, 0, 1, 1, { fill: "red" })));
  assert.match(pen.svg, /<g transform="translate\(1 2\)">\n<g shape.*>\n<rect .*\n<\/g>\n<\/g>\n<\/svg>/);
});
