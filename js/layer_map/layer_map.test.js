import assert from "node:assert/strict";
import { test } from "node:test";
import { packPayload } from "../core/payload.js";
import { SvgPen } from "../core/pen.js";
import { runAll } from "../core/sliced_task.js";
import { measure, theme } from "../core/testing.js";
import { DiscCache } from "./disc_cache.js";
import { exportMap } from "./file.js";
import {
  computeMapLayout,
  panBy,
  panToReveal,
  projectPoint,
  projectPoints,
  unprojectPoint,
  zoomAround,
  zoomToLayers,
} from "./layout.js";
import {
  createColoring,
  describeOrigin,
  describePoint,
  findEnclosed,
  findNearest,
  findNextText,
  getContext,
  getPoints,
  interpolate,
  unpackMap,
} from "./model.js";
import { createLegend, createLegendEntries, paintMap, paintTrajectory } from "./paint.js";
import { SearchIndex } from "./search.js";

const WORDS = ["the", "boat", "the", "river", "sinks"];
const TEXTS = [0, 0, 1, 1, 2];
const BOX = { width: 800, height: 400 };
const hexTheme = { ...theme, background: "#ffffff", muted: "#808080", ink: "#000000" };
const RAMP = Array.from({ length: 256 }, (_, i) => `ramp-${i}`);

/** Returns a map of five tokens of three texts at three layers. @param {Record<string, unknown>} more @param {string[]} words */
function createMap(more = {}, words = WORDS) {
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
  return unpackMap(packPayload(described, arrays, { points: [3, words.length, 2] }));
}

/** @param {import("./model.js").MapModel} map @param {Partial<import("./model.js").Display>} display @param {object} more */
function createPicture(map, display = {}, more = {}) {
  /** @type {import("./model.js").Display} */
  const seen = { mode: "layer", layer: 0, by: "word", ...display };
  const geometry = computeMapLayout(map, BOX, seen, null);
  const colors = createColoring(map, seen.by, RAMP);
  return {
    model: map,
    theme,
    measure,
    geometry,
    colors,
    by: seen.by,
    highlighted: null,
    animatedPoints: null,
    ...more,
  };
}

/** @param {(pen: SvgPen) => void} paint */
function paintSvg(paint) {
  const pen = new SvgPen(800, 400, "A map", "sans-serif");
  paint(pen);
  return pen.svg;
}

/** Counts the discs in an SVG. @param {string} svg */
const discs = (svg = "") => svg.match(/h0/g)?.length ?? 0;

test("points are interpolated between layers", () => {
  const map = createMap();
  assert.deepEqual([...getPoints(map, 1)].slice(0, 4), [10, 1, 11, 1]);
  const points = new Float32Array(10);
  interpolate(getPoints(map, 0), getPoints(map, 1), 0.5, points);
  assert.deepEqual([...points].slice(0, 2), [5, 0.5]);
  interpolate(getPoints(map, 0), getPoints(map, 1), 1, points);
  assert.deepEqual(points, getPoints(map, 1));
});

test("a shared plane has the same transform in all layers", () => {
  const [map, apart] = [createMap(), createMap({ joined: false })];
  /** @param {import("./model.js").MapModel} of @param {number} layer */
  const lens = (of, layer) =>
    computeMapLayout(of, BOX, { mode: "layer", layer, by: "word" }, null).panels[0].transform;
  assert.deepEqual(lens(map, 0), lens(map, 2));
  assert.notDeepEqual(lens(apart, 0), lens(apart, 2));
});

test("both axes have the same scale, and all marks are within their panel", () => {
  const map = createMap();
  for (const mode of /** @type {const} */ (["layer", "all", "each"])) {
    for (const { layers, area, transform } of computeMapLayout(map, BOX, { mode, layer: 1, by: "word" }, null)
      .panels) {
      const [zero, unit] = [projectPoint(transform, 0, 0), projectPoint(transform, 1, 1)];
      assert.ok(Math.abs(unit.x - zero.x - (zero.y - unit.y)) < 1e-9);
      for (const layer of layers) {
        const pixels = projectPoints(transform, getPoints(map, layer));
        for (let i = 0; i < pixels.length; i += 2) {
          assert.ok(pixels[i] >= area.x && pixels[i] <= area.x + area.width);
          assert.ok(pixels[i + 1] >= area.y && pixels[i + 1] <= area.y + area.height);
        }
      }
    }
  }
});

test("several panels are arranged in rows at any width", () => {
  for (const width of [340, 700, 1200]) {
    const { panels, height } = computeMapLayout(
      createMap(),
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

test("zooming keeps the spot under the pointer fixed, and ends when everything is visible", () => {
  const map = createMap();
  /** @param {import("./layout.js").Zoom} zoom */
  const panel = (zoom) => computeMapLayout(map, BOX, { mode: "layer", layer: 0, by: "word" }, zoom).panels[0];
  const about = { x: 123, y: 77 };
  const meant = unprojectPoint(panel(null).transform, about);
  const zoom = zoomAround(panel(null), null, 3, about);
  const pixel = projectPoint(panel(zoom).transform, meant.x, meant.y);
  assert.ok(Math.hypot(pixel.x - about.x, pixel.y - about.y) < 1e-6);
  assert.equal(zoomAround(panel(zoom), zoom, 1 / 4, about), null);
  const aside = panBy(panel(zoom), zoom, 10, -5);
  const panned = projectPoint(panel(aside).transform, meant.x, meant.y);
  assert.ok(Math.hypot(panned.x - about.x - 10, panned.y - about.y + 5) < 1e-6);
});

test("zooming to a layer fills the panel", () => {
  const map = createMap();
  const all = computeMapLayout(map, BOX, { mode: "layer", layer: 2, by: "word" }, null).panels[0];
  const zoom = zoomToLayers(map, all, null, [2]);
  const { transform, area } = computeMapLayout(map, BOX, { mode: "layer", layer: 2, by: "word" }, zoom)
    .panels[0];
  const xs = projectPoints(transform, getPoints(map, 2)).filter((_, i) => i % 2 === 0);
  assert.ok(Math.max(...xs) - Math.min(...xs) > 0.9 * area.width);
  assert.equal(zoomToLayers(map, all, null, [0, 1, 2]), null);
});

test("the keyboard pans just enough to reveal a mark", () => {
  const map = createMap();
  /** @param {import("./layout.js").Zoom} zoom */
  const panel = (zoom) => computeMapLayout(map, BOX, { mode: "layer", layer: 0, by: "word" }, zoom).panels[0];
  const zoom = { times: 20, x: 0, y: 0 };
  const far = { x: 24, y: 2 };
  const moved = panToReveal(panel(zoom), zoom, far);
  const pixel = projectPoint(panel(moved).transform, far.x, far.y);
  assert.ok(pixel.x > 0 && pixel.x < BOX.width && pixel.y > 0 && pixel.y < BOX.height);
  assert.equal(panToReveal(panel(zoom), zoom, { x: 0, y: 0 }), zoom);
});

test("a lasso encloses marks, also if it is concave", () => {
  const points = [1, 1, 5, 1, 3, 3];
  const bent = [
    { x: 0, y: 0 },
    { x: 6, y: 0 },
    { x: 6, y: 6 },
    { x: 3, y: 2 },
    { x: 0, y: 6 },
  ];
  assert.deepEqual(findEnclosed(points, bent), [0, 1]);
  assert.deepEqual(findEnclosed(points, []), []);
});

test("the nearest mark within reach is found", () => {
  assert.equal(findNearest([0, 0, 10, 0], { x: 6, y: 0 }, 8)?.index, 1);
  assert.equal(findNearest([0, 0, 10, 0], { x: 30, y: 0 }, 8), null);
});

test("a search finds parts of words and ignores case", () => {
  const index = new SearchIndex(createMap());
  /** @param {string} query */
  const find = (query) => [...(index.find(query) ?? [])];
  assert.deepEqual(find(" ThE"), [0, 2]);
  assert.deepEqual(find("i"), [3, 4]);
  assert.deepEqual(find("nowhere"), []);
  assert.equal(index.find("  "), null);
});

test("a search after other searches finds the same as a new one", () => {
  const letters = "ab";
  const words = Array.from({ length: 200 }, (_, i) =>
    Array.from({ length: 6 }, (_, place) => letters[(i >> place) & 1]).join(""),
  );
  const map = createMap({}, words);
  const index = new SearchIndex(map);
  for (const query of [
    "a",
    "ab",
    "aba",
    "ab",
    "a",
    "",
    "b",
    "AB",
    "bab",
    "babb",
    "zz",
    "zzz",
    "a",
    "bbbbbb",
    "abab",
  ]) {
    const expected = query
      ? words.flatMap((word, mark) => (word.includes(query.toLowerCase()) ? [mark] : []))
      : null;
    const matches = index.find(query);
    assert.deepEqual(matches && [...matches], expected, query);
  }
});

test("the pixels of highlighted marks are the same with and without a cache", () => {
  const words = Array.from({ length: 1500 }, (_, i) => `w${i % 40}`);
  const map = createMap({ count: 1500 }, words);
  for (const mode of /** @type {const} */ (["all", "layer", "each"])) {
    const picture = createPicture(map, { mode }, { theme: hexTheme });
    const cache = new DiscCache(picture, 1);
    for (const highlighted of [[3], [3, 7, 900], null, Uint32Array.from(words.keys())]) {
      const panels = runAll(cache.draw(highlighted));
      const expected = runAll(new DiscCache(picture, 1).draw(highlighted));
      for (const [i, { pixels }] of panels.entries()) assert.deepEqual(pixels.rgba, expected[i].pixels.rgba);
    }
  }
});

test("faded marks are drawn further where an earlier search stopped", () => {
  const words = Array.from({ length: 3000 }, (_, i) => `w${i % 40}`);
  const picture = createPicture(createMap({}, words), { mode: "all" }, { theme: hexTheme });
  const cache = new DiscCache(picture, 1);
  const first = cache.draw([1]);
  for (let step = 0; step < 3; step++) first.next();
  const [continued] = runAll(cache.draw([5]));
  const [expected] = runAll(new DiscCache(picture, 1).draw([5]));
  assert.deepEqual(continued.pixels.rgba, expected.pixels.rgba);
});

test("a lasso in bands encloses the same marks as the even-odd rule", () => {
  const line = Array.from({ length: 90 }, (_, i) => ({
    x: 50 + 40 * Math.sin(i * 0.7) * Math.cos(i / 9),
    y: 50 + 45 * Math.sin(i * 1.3 + 1),
  }));
  const points = Float32Array.from({ length: 4000 }, (_, i) => ((i * 7919) % 1009) / 10);
  const expected = [];
  for (let i = 0; 2 * i < points.length; i++) {
    const [x, y] = [points[2 * i], points[2 * i + 1]];
    const crossings = line.filter((b, j) => {
      const a = line[(j + line.length - 1) % line.length];
      return b.y > y !== a.y > y && x < ((a.x - b.x) * (y - b.y)) / (a.y - b.y) + b.x;
    });
    if (crossings.length % 2) expected.push(i);
  }
  assert.ok(expected.length > 100);
  assert.deepEqual(findEnclosed(points, line), expected);
});

test("the most frequent words have colors, and the others are gray", () => {
  const words = Array.from({ length: 40 }, (_, i) => (i < 4 ? "often" : `w${i}`));
  const colors = createColoring(createMap({}, words), "word", RAMP);
  assert.equal(colors.entries[0].label, "often");
  assert.equal(colors.colorOf[0], 0);
  assert.ok(colors.colorOf.includes(-1));
  const entries = createLegendEntries(colors, theme);
  assert.equal(entries.length, 17);
  assert.equal(entries.at(-1)?.label, "others");
  assert.equal(createColoring(createMap(), "word", RAMP).hasOthers, false);
});

test("parts are colored by label or text, and many texts by a ramp", () => {
  const labeled = createColoring(createMap({ parts: ["calm", "storm"] }), "part", RAMP);
  assert.deepEqual([labeled.title, labeled.entries[1].label], ["Part", "storm"]);
  const few = createColoring(createMap(), "part", RAMP);
  assert.deepEqual([few.title, few.entries.length, [...few.colorOf]], ["Text", 3, TEXTS]);
  const steps = createColoring(createMap({ textCount: 300 }), "part", RAMP);
  assert.ok(steps.isRamp);
  assert.ok(createLegendEntries(steps, theme).length <= 10);
});

test("a mark is described with its layer, its text and its context", () => {
  const map = createMap();
  assert.equal(describePoint(map, { index: 1, layer: 2 }), "boat · layer 2 · 21.00, 2.00");
  assert.deepEqual(getContext(map, 2), { before: "", after: "river" });
  assert.equal(describeOrigin(map, 3), "text 2, position 4");
  const long = createMap(
    { textCount: 1 },
    Array.from({ length: 30 }, (_, i) => `w${i}`),
  );
  assert.equal(getContext(long, 15).before, "… w10 w11 w12 w13 w14");
});

test("the keyboard moves from text to text and stops at the ends", () => {
  const map = createMap();
  assert.equal(findNextText(map, 1, 1), 2);
  assert.equal(findNextText(map, 3, -1), 0);
  assert.equal(findNextText(map, 0, -1), 0);
  assert.equal(findNextText(map, 4, 1), 4);
});

test("every mark is painted once per visible layer", () => {
  const map = createMap();
  const svg = paintSvg((pen) => paintMap(pen, createPicture(map)));
  assert.equal(discs(svg), 5);
  assert.match(svg, />component 1 · 40.0% of the variance →</);
  assert.equal(discs(paintSvg((pen) => paintMap(pen, createPicture(map, { mode: "all", by: "layer" })))), 15);
  const each = paintSvg((pen) => paintMap(pen, createPicture(map, { mode: "each" })));
  assert.equal(discs(each), 15);
  assert.match(each, />Layer 2</);
  assert.match(each, />50%</);
});

test("the colors of many marks are interleaved", () => {
  const words = Array.from({ length: 600 }, (_, i) => `w${i % 3}`);
  const svg = paintSvg((pen) => paintMap(pen, createPicture(createMap({}, words))));
  const order = [...svg.matchAll(/d="[^"]*h0" fill="none" stroke="(#\w+)"/g)].map(([, color]) => color);
  assert.equal(discs(svg), 600);
  assert.ok(order.lastIndexOf(order[0]) > order.indexOf(order.at(-1) ?? ""));
});

test("highlighted marks are on top, and the others are faded", () => {
  const svg = paintSvg((pen) => paintMap(pen, createPicture(createMap(), {}, { highlighted: [1] })));
  const paths = svg.split("\n").filter((line) => line.includes("h0"));
  assert.equal(discs(svg), 5);
  assert.match(paths[0], /stroke-opacity="0.13"/);
  assert.equal(discs(paths.at(-1) ?? ""), 1);
  assert.doesNotMatch(paths.at(-1) ?? "", /stroke-opacity/);
});

test("a trajectory needs a plane that all layers share", () => {
  const way = paintSvg((pen) =>
    paintTrajectory(pen, createPicture(createMap()), { index: 1, layer: 0 }, true),
  );
  assert.equal(discs(way), 3);
  for (const layer of [0, 1, 2]) assert.match(way, new RegExp(`>${layer}<`));
  const apart = createPicture(createMap({ joined: false }));
  assert.equal(discs(paintSvg((pen) => paintTrajectory(pen, apart, { index: 1, layer: 0 }, true))), 0);
});

test("names do not overlap", () => {
  const map = createMap(
    {},
    Array.from({ length: 200 }, (_, i) => `word${i}`),
  );
  const svg = paintSvg((pen) => paintMap(pen, createPicture(map)));
  const texts = [...svg.matchAll(/<text x="([\d.]+)" y="([\d.]+)".*?>(\w+)</g)];
  assert.ok(texts.length > 2 && texts.length < 100);
  const boxes = texts.map(([, x, y, word]) => ({ x: Number(x), y: Number(y), width: measure(word, 12) }));
  for (const [i, box] of boxes.entries()) {
    for (const other of boxes.slice(i + 1)) {
      const beside = box.x + box.width <= other.x || other.x + other.width <= box.x;
      assert.ok(beside || Math.abs(box.y - other.y) >= 10);
    }
  }
});

test("a name without space on the right is on the left", () => {
  const map = createMap();
  const svg = paintSvg((pen) => paintMap(pen, createPicture(map, { layer: 2 })));
  const [, x] = /<text x="([\d.]+)" [^>]*>sinks</.exec(svg) ?? [];
  assert.ok(Number(x) + measure("sinks", 12) <= BOX.width);
});

test("a file has a caption, labels and a legend that grows with its rows", () => {
  const saved = exportMap(createPicture(createMap()), { index: 1, layer: 0 });
  const svg = paintSvg(saved.paint);
  assert.match(svg, /A map: layer 0\. Half of it\./);
  assert.match(
    paintSvg(exportMap(createPicture(createMap(), { mode: "all" }), null).paint),
    /A map\. Half of it\./,
  );
  for (const word of ["boat", "river"]) assert.match(svg, new RegExp(`>${word}<`));
  const colors = createColoring(
    createMap(
      {},
      Array.from({ length: 40 }, (_, i) => `a long word ${i}`),
    ),
    "word",
    RAMP,
  );
  const wide = createLegend({ ...createPicture(createMap()), colors: colors }, 300);
  assert.ok(wide.height > createLegend(createPicture(createMap()), 300).height);
});

test("user text is escaped in a file", () => {
  const svg = paintSvg((pen) => paintMap(pen, createPicture(createMap({}, ["b", "<img src=x>"]))));
  assert.match(svg, /&lt;img src=x&gt;/);
  assert.doesNotMatch(svg, /<img/);
});
