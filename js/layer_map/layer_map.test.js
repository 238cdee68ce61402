import assert from "node:assert/strict";
import { test } from "node:test";
import { SvgPen } from "../core/pen.js";
import { measure, packed, theme } from "../core/testing.js";
import { savedMap } from "./file.js";
import { closeUp, inPixels, mapLayout, pushed, revealing, toPixels, toPlane, zoomedBy } from "./layout.js";
import {
  between,
  coloring,
  enclosed,
  found,
  nearest,
  nextText,
  pointsOf,
  sentence,
  surroundings,
  unpackMap,
  whence,
} from "./model.js";
import { legendEntries, legendOf, paintMap, paintWay } from "./paint.js";

const WORDS = ["the", "boat", "the", "river", "sinks"];
const TEXTS = [0, 0, 1, 1, 2];
const BOX = { width: 800, height: 400 };
const RAMP = Array.from({ length: 256 }, (_, i) => `ramp-${i}`);

/** Five tokens of three texts at three layers. @param {Record<string, unknown>} more @param {string[]} words */
function model(more = {}, words = WORDS) {
  const names = [...new Set(words)];
  const points = Float32Array.from({ length: 3 * 2 * words.length }, (_, i) => {
    const [layer, mark] = [Math.floor(i / 2 / words.length), Math.floor(i / 2) % words.length];
    return i % 2 ? layer : mark + 10 * layer;
  });
  const described = {
    key: "m",
    of: "these",
    names,
    parts: [],
    textCount: 3,
    what: "words",
    caption: "A map",
    variance: "Half of it.",
    explained: [0.4, 0.1],
    shares: [0.5, 0.25, null],
    joined: true,
    fileName: "map",
    start: { mode: "layer", layer: 2, by: "word" },
    ...more,
  };
  const arrays = {
    points,
    name: Uint16Array.from(words, (word) => names.indexOf(word)),
    text: Uint16Array.from(words, (_, i) => TEXTS[i] ?? 2),
    position: Uint16Array.from(words, (_, i) => i + 1),
    part: new Uint16Array(words.length),
    light: new Uint8Array(768),
    dark: new Uint8Array(768),
  };
  return unpackMap(packed(described, arrays, { points: [3, words.length, 2] }));
}

/** @param {import("./model.js").MapModel} map @param {Partial<import("./model.js").Shown>} shown @param {object} more */
function picture(map, shown = {}, more = {}) {
  /** @type {import("./model.js").Shown} */
  const seen = { mode: "layer", layer: 0, by: "word", ...shown };
  const geometry = mapLayout(map, BOX, seen, null);
  const colors = coloring(map, seen.by, RAMP);
  return {
    model: map,
    theme,
    measure,
    geometry,
    colors,
    by: seen.by,
    emphasised: null,
    moving: null,
    ...more,
  };
}

/** @param {(pen: SvgPen) => void} paint */
function painted(paint) {
  const pen = new SvgPen(800, 400, "A map", "sans-serif");
  paint(pen);
  return pen.drawing;
}

/** How many discs are drawn. @param {string} svg */
const discs = (svg = "") => svg.match(/h0/g)?.length ?? 0;

test("each layer has its own points, and a mark is half way when half the time is over", () => {
  const map = model();
  assert.deepEqual([...pointsOf(map, 1)].slice(0, 4), [10, 1, 11, 1]);
  const at = new Float32Array(10);
  between(pointsOf(map, 0), pointsOf(map, 1), 0.5, at);
  assert.deepEqual([...at].slice(0, 2), [5, 0.5]);
  between(pointsOf(map, 0), pointsOf(map, 1), 1, at);
  assert.deepEqual(at, pointsOf(map, 1));
});

test("one plane stays where it is from layer to layer, planes of their own do not", () => {
  const [map, apart] = [model(), model({ joined: false })];
  /** @param {import("./model.js").MapModel} of @param {number} layer */
  const lens = (of, layer) => mapLayout(of, BOX, { mode: "layer", layer, by: "word" }, null).panels[0].lens;
  assert.deepEqual(lens(map, 0), lens(map, 2));
  assert.notDeepEqual(lens(apart, 0), lens(apart, 2));
});

test("a unit is as long across as up, and all marks are in the picture", () => {
  const map = model();
  for (const mode of /** @type {const} */ (["layer", "all", "each"])) {
    for (const { layers, area, lens } of mapLayout(map, BOX, { mode, layer: 1, by: "word" }, null).panels) {
      const [zero, one] = [toPixels(lens, 0, 0), toPixels(lens, 1, 1)];
      assert.ok(Math.abs(one.x - zero.x - (zero.y - one.y)) < 1e-9);
      for (const layer of layers) {
        const at = inPixels(lens, pointsOf(map, layer));
        for (let i = 0; i < at.length; i += 2) {
          assert.ok(at[i] >= area.x && at[i] <= area.x + area.width);
          assert.ok(at[i + 1] >= area.y && at[i + 1] <= area.y + area.height);
        }
      }
    }
  }
});

test("several pictures stand in rows, wherever they are shown", () => {
  for (const width of [340, 700, 1200]) {
    const { panels, height } = mapLayout(
      model(),
      { width, height: 400 },
      { mode: "each", layer: 0, by: "word" },
      null,
    );
    assert.equal(panels.length, 3);
    for (const { area } of panels) {
      assert.ok(area.x >= 0 && area.x + area.width <= width);
      assert.ok(area.y + area.height <= height);
    }
  }
});

test("zooming keeps what is under the pointer there, and ends where all is shown", () => {
  const map = model();
  /** @param {import("./layout.js").Zoom} zoom */
  const panel = (zoom) => mapLayout(map, BOX, { mode: "layer", layer: 0, by: "word" }, zoom).panels[0];
  const about = { x: 123, y: 77 };
  const meant = toPlane(panel(null).lens, about);
  const zoom = zoomedBy(panel(null), null, 3, about);
  const now = toPixels(panel(zoom).lens, meant.x, meant.y);
  assert.ok(Math.hypot(now.x - about.x, now.y - about.y) < 1e-6);
  assert.equal(zoomedBy(panel(zoom), zoom, 1 / 4, about), null);
  const aside = pushed(panel(zoom), zoom, 10, -5);
  const then = toPixels(panel(aside).lens, meant.x, meant.y);
  assert.ok(Math.hypot(then.x - about.x - 10, then.y - about.y + 5) < 1e-6);
});

test("a layer is shown as large as can be, wherever it lies", () => {
  const map = model();
  const all = mapLayout(map, BOX, { mode: "layer", layer: 2, by: "word" }, null).panels[0];
  const zoom = closeUp(map, all, null, [2]);
  const { lens, area } = mapLayout(map, BOX, { mode: "layer", layer: 2, by: "word" }, zoom).panels[0];
  const at = inPixels(lens, pointsOf(map, 2)).filter((_, i) => i % 2 === 0);
  assert.ok(Math.max(...at) - Math.min(...at) > 0.9 * area.width);
  assert.equal(closeUp(map, all, null, [0, 1, 2]), null);
});

test("the keyboard pushes the plane by as little as shows a mark", () => {
  const map = model();
  /** @param {import("./layout.js").Zoom} zoom */
  const panel = (zoom) => mapLayout(map, BOX, { mode: "layer", layer: 0, by: "word" }, zoom).panels[0];
  const zoom = { times: 20, x: 0, y: 0 };
  const far = { x: 24, y: 2 };
  const moved = revealing(panel(zoom), zoom, far);
  const at = toPixels(panel(moved).lens, far.x, far.y);
  assert.ok(at.x > 0 && at.x < BOX.width && at.y > 0 && at.y < BOX.height);
  assert.equal(revealing(panel(zoom), zoom, { x: 0, y: 0 }), zoom);
});

test("a lasso takes what lies within it, also where it bends inwards", () => {
  const at = [1, 1, 5, 1, 3, 3];
  const bent = [
    { x: 0, y: 0 },
    { x: 6, y: 0 },
    { x: 6, y: 6 },
    { x: 3, y: 2 },
    { x: 0, y: 6 },
  ];
  assert.deepEqual(enclosed(at, bent), [0, 1]);
  assert.deepEqual(enclosed(at, []), []);
});

test("the mark next to the pointer is meant, within reach", () => {
  assert.equal(nearest([0, 0, 10, 0], { x: 6, y: 0 }, 8)?.index, 1);
  assert.equal(nearest([0, 0, 10, 0], { x: 30, y: 0 }, 8), null);
});

test("a search finds words by a part of them, whatever their case", () => {
  assert.deepEqual(found(model(), " ThE"), [0, 2]);
  assert.deepEqual(found(model(), "i"), [3, 4]);
  assert.deepEqual(found(model(), "nowhere"), []);
  assert.equal(found(model(), "  "), null);
});

test("the most frequent words have colors, others are gray, and the legend says so", () => {
  const many = Array.from({ length: 40 }, (_, i) => (i < 4 ? "often" : `w${i}`));
  const colors = coloring(model({}, many), "word", RAMP);
  assert.equal(colors.entries[0].label, "often");
  assert.equal(colors.colorOf[0], 0);
  assert.ok(colors.colorOf.includes(-1));
  const entries = legendEntries(colors, theme);
  assert.equal(entries.length, 17);
  assert.equal(entries.at(-1)?.label, "others");
  assert.equal(coloring(model(), "word", RAMP).others, false);
});

test("parts are labels where there are any, else texts; many texts are steps of one scale", () => {
  const labelled = coloring(model({ parts: ["calm", "storm"] }), "part", RAMP);
  assert.deepEqual([labelled.title, labelled.entries[1].label], ["Part", "storm"]);
  const few = coloring(model(), "part", RAMP);
  assert.deepEqual([few.title, few.entries.length, [...few.colorOf]], ["Text", 3, TEXTS]);
  const steps = coloring(model({ textCount: 300 }), "part", RAMP);
  assert.ok(steps.ramp);
  assert.ok(legendEntries(steps, theme).length <= 10);
});

test("a mark is told with its layer, its text and its neighbours there alone", () => {
  const map = model();
  assert.equal(sentence(map, { index: 1, layer: 2 }), "boat · layer 2 · 21.00, 2.00");
  assert.deepEqual(surroundings(map, 2), { before: "", after: "river" });
  assert.equal(whence(map, 3), "text 2, position 4");
  const long = model(
    { textCount: 1 },
    Array.from({ length: 30 }, (_, i) => `w${i}`),
  );
  assert.equal(surroundings(long, 15).before, "… w10 w11 w12 w13 w14");
});

test("the keyboard goes from text to text, and stays at the ends", () => {
  const map = model();
  assert.equal(nextText(map, 1, 1), 2);
  assert.equal(nextText(map, 3, -1), 0);
  assert.equal(nextText(map, 0, -1), 0);
  assert.equal(nextText(map, 4, 1), 4);
});

test("every mark is drawn once, in one layer or in all", () => {
  const map = model();
  const one = painted((pen) => paintMap(pen, picture(map)));
  assert.equal(discs(one), 5);
  assert.match(one, />component 1 · 40.0% of the variance →</);
  assert.equal(discs(painted((pen) => paintMap(pen, picture(map, { mode: "all", by: "layer" })))), 15);
  const each = painted((pen) => paintMap(pen, picture(map, { mode: "each" })));
  assert.equal(discs(each), 15);
  assert.match(each, />Layer 2</);
  assert.match(each, />50%</);
});

test("of many marks none covers all others because its color comes last", () => {
  const many = Array.from({ length: 600 }, (_, i) => `w${i % 3}`);
  const svg = painted((pen) => paintMap(pen, picture(model({}, many))));
  const order = [...svg.matchAll(/d="[^"]*h0" fill="none" stroke="(#\w+)"/g)].map(([, color]) => color);
  assert.equal(discs(svg), 600);
  assert.ok(order.lastIndexOf(order[0]) > order.indexOf(order.at(-1) ?? ""));
});

test("what stands out is drawn above, all else is faded", () => {
  const svg = painted((pen) => paintMap(pen, picture(model(), {}, { emphasised: [1] })));
  const paths = svg.split("\n").filter((line) => line.includes("h0"));
  assert.equal(discs(svg), 5);
  assert.match(paths[0], /stroke-opacity="0.13"/);
  assert.equal(discs(paths.at(-1) ?? ""), 1);
  assert.doesNotMatch(paths.at(-1) ?? "", /stroke-opacity/);
});

test("a way goes through all layers of one plane, and there is none between planes of their own", () => {
  const way = painted((pen) => paintWay(pen, picture(model()), { index: 1, layer: 0 }, true));
  assert.equal(discs(way), 3);
  for (const layer of [0, 1, 2]) assert.match(way, new RegExp(`>${layer}<`));
  const apart = picture(model({ joined: false }));
  assert.equal(discs(painted((pen) => paintWay(pen, apart, { index: 1, layer: 0 }, true))), 0);
});

test("names do not cover each other", () => {
  const map = model(
    {},
    Array.from({ length: 200 }, (_, i) => `word${i}`),
  );
  const svg = painted((pen) => paintMap(pen, picture(map)));
  const texts = [...svg.matchAll(/<text x="([\d.]+)" y="([\d.]+)".*?>(\w+)</g)];
  assert.ok(texts.length > 2 && texts.length < 100);
  const boxes = texts.map(([, x, y, word]) => ({ x: Number(x), y: Number(y), width: measure(word, 12) }));
  for (const [i, one] of boxes.entries()) {
    for (const other of boxes.slice(i + 1)) {
      const beside = one.x + one.width <= other.x || other.x + other.width <= one.x;
      assert.ok(beside || Math.abs(one.y - other.y) >= 10);
    }
  }
});

test("a name that has no room on the right stands on the left", () => {
  const map = model();
  const svg = painted((pen) => paintMap(pen, picture(map, { layer: 2 })));
  const [, x] = /<text x="([\d.]+)" [^>]*>sinks</.exec(svg) ?? [];
  assert.ok(Number(x) + measure("sinks", 12) <= BOX.width);
});

test("a file has caption, shares and a legend as high as its rows", () => {
  const saved = savedMap(picture(model()), { index: 1, layer: 0 });
  const svg = painted(saved.paint);
  assert.match(svg, /A map: layer 0\. Half of it\./);
  assert.match(painted(savedMap(picture(model(), { mode: "all" }), null).paint), /A map\. Half of it\./);
  for (const word of ["boat", "river"]) assert.match(svg, new RegExp(`>${word}<`));
  const many = coloring(
    model(
      {},
      Array.from({ length: 40 }, (_, i) => `a long word ${i}`),
    ),
    "word",
    RAMP,
  );
  const wide = legendOf({ ...picture(model()), colors: many }, 300);
  assert.ok(wide.height > legendOf(picture(model()), 300).height);
});

test("words of a person are text in a file, whatever they hold", () => {
  const svg = painted((pen) => paintMap(pen, picture(model({}, ["b", "<img src=x>"]))));
  assert.match(svg, /&lt;img src=x&gt;/);
  assert.doesNotMatch(svg, /<img/);
});
