// Painting of the head view, for the screen and for files.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { headColor } from "../core/color.js";
import { ellipsised, formatted, isShown } from "../core/text.js";
import { MEAN } from "../core/view.js";
import { anchor, inView } from "./layout.js";

/**
 * @typedef {import("../core/pen.js").Pen} Pen
 * @typedef {import("./lines.js").Line} Line
 * @typedef {import("../core/view.js").Side} Side
 */

/**
 * @typedef {object} HeadPicture
 * @property {import("./model.js").HeadModel} model
 * @property {import("../core/theme.js").Theme} theme
 * @property {import("../core/text.js").Measure} measure
 * @property {import("./layout.js").HeadGeometry} geometry
 * @property {number[]} shown the visible units
 * @property {Map<number, number>} places unit → index among the visible units
 * @property {import("../core/pen.js").Area} view the visible area of the content
 */

/**
 * Units of one side, and their weights to the other side.
 *
 * @typedef {object} Chosen
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Line[]} lines
 * @property {Float64Array} mean
 * @property {string} color
 */

const LEVELS = 16; // number of opacities of lines; each is one path, so that thousands of lines are fast
const FAINTEST = 0.06;
const BAR = 30; // length of a bar for all of a query's attention
const LEAST_NUMBER = 0.005; // smaller weights would be rounded to 0.00

/**
 * Paints tokens and lines without pointer and pins.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Line[]} lines
 * @param {Map<number, number>} bars shares drawn next to the queries
 */
export function paintHeads(pen, picture, lines, bars) {
  const { view, theme } = picture;
  pen.rectangle(0, 0, view.width, view.height, { fill: theme.background });
  paintLines(pen, picture, lines);
  paintBars(pen, picture, bars);
  paintUnits(pen, picture);
  paintSides(pen, picture);
}

/** Paints the attention of queries on hidden tokens, as bars on their outer side.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Map<number, number>} bars */
function paintBars(pen, picture, bars) {
  const { geometry, theme } = picture;
  for (const [unit, share] of bars) {
    const index = placeOf(picture, unit);
    const [x, y] = anchor(picture, "query", index);
    const room = geometry.starts[index + 1] - geometry.starts[index];
    if (geometry.vertical) {
      const end = x - geometry.labelLimit - 18;
      const height = Math.min(8, room * 0.6);
      pen.rectangle(end - BAR, y - height / 2, BAR, height, { fill: theme.line });
      pen.rectangle(end - BAR * share, y - height / 2, BAR * share, height, { fill: theme.muted });
    } else {
      const width = Math.min(8, room * 0.6);
      const [low, high] = [y - 27, BAR / 2];
      pen.rectangle(x - width / 2, low - high, width, high, { fill: theme.line });
      pen.rectangle(x - width / 2, low - high * share, width, high * share, { fill: theme.muted });
    }
  }
}

/** Paints lines in buckets of head and opacity: alpha by the square root of the weight, width by the weight.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Line[]} lines */
function paintLines(pen, picture, lines) {
  /** @type {Map<number, Line[]>} */
  const buckets = new Map();
  for (const line of lines) {
    const strength = Math.sqrt(Math.min(line.weight / picture.model.full, 1));
    const level = Math.min(Math.floor(strength * LEVELS), LEVELS - 1);
    const id = level * 1000 + (line.head === MEAN ? 999 : line.head);
    const bucket = buckets.get(id);
    if (bucket) bucket.push(line);
    else buckets.set(id, [line]);
  }
  // Strong lines last, so that they are on top.
  for (const [id, bucket] of [...buckets].sort(([one], [other]) => one - other)) {
    const share = (Math.floor(id / 1000) + 1) / LEVELS;
    pen.path(
      (path) => {
        for (const line of bucket) trace(path, picture, line);
      },
      {
        stroke: seriesColor(picture, bucket[0].head),
        alpha: FAINTEST + (1 - FAINTEST) * share ** 1.3,
        line: 0.7 + 2.8 * share ** 2,
      },
    );
  }
}

/** @param {HeadPicture} picture @param {number} unit */
function placeOf({ places }, unit) {
  return /** @type {number} */ (places.get(unit));
}

/** @param {import("../core/pen.js").Path} path @param {HeadPicture} picture @param {Line} line */
function trace(path, picture, { query, key }) {
  const [x, y] = anchor(picture, "query", placeOf(picture, query));
  const [u, v] = anchor(picture, "key", placeOf(picture, key));
  path.moveTo(x, y);
  if (picture.geometry.vertical) path.bezierCurveTo((x + u) / 2, y, (x + u) / 2, v, u, v);
  else path.bezierCurveTo(x, (y + v) / 2, u, (y + v) / 2, u, v);
}

/**
 * @param {Pick<HeadPicture, "model" | "theme">} picture
 * @param {import("../core/view.js").Head} head
 */
export function seriesColor({ model, theme }, head) {
  return head === MEAN ? theme.accent : headColor(model.heads[head]);
}

/** Paints labels; special tokens are muted unless marked.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Set<number>} [marked] */
function paintUnits(pen, picture, marked) {
  const { geometry, shown, theme, model } = picture;
  const [first, end] = inView(picture);
  for (let index = first; index < end; index++) {
    if (!isShown("", index, geometry.every)) continue;
    const unit = shown[index];
    const fill = model.units[unit].special && !marked?.has(unit) ? theme.muted : theme.ink;
    for (const side of SIDES) paintLabel(pen, picture, side, index, fill);
    if (model.units[unit].segment) paintSegment(pen, picture, index);
  }
}

/** @type {Side[]} */
const SIDES = ["query", "key"];

/** @param {HeadPicture} picture @param {number} index */
function labelOf({ model, shown, geometry, measure }, index, weight = 400) {
  return ellipsised(model.names[shown[index]], geometry.labelLimit, geometry.size, measure, weight);
}

/** @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} index @param {string} fill */
function paintLabel(pen, picture, side, index, fill, weight = 400) {
  const [x, y] = labelPlace(picture, side, index);
  const { vertical, size } = picture.geometry;
  const lettering = { size, fill, weight, anchor: alignment(vertical, side), middle: true };
  pen.text(labelOf(picture, index, weight), x, y, lettering);
}

/** @param {boolean} vertical @param {Side} side @returns {import("../core/pen.js").Lettering["anchor"]} */
function alignment(vertical, side) {
  return vertical ? (side === "query" ? "end" : "start") : "middle";
}

/** @param {HeadPicture} picture @param {Side} side @param {number} index */
function labelPlace(picture, side, index) {
  const [x, y] = anchor(picture, side, index);
  const away = (side === "query" ? -1 : 1) * (picture.geometry.vertical ? 9 : 16);
  return picture.geometry.vertical ? [x + away, y + 0.5] : [x, y + away];
}

/** The left end of a box around a label.
 *
 * @param {HeadPicture} picture @param {Side} side @param {number} x @param {number} width @param {number} margin */
function boxStart({ geometry }, side, x, width, margin) {
  if (!geometry.vertical) return x - width / 2;
  return side === "query" ? x - width + margin : x - margin;
}

/** Marks the tokens of the second text with a bar where their lines start or end.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {number} index */
function paintSegment(pen, picture, index) {
  const { geometry, theme } = picture;
  const fill = constants.secondText[theme.dark ? "dark" : "light"];
  const length = Math.max(geometry.starts[index + 1] - geometry.starts[index] - 2, 0.5);
  for (const side of SIDES) {
    const [x, y] = anchor(picture, side, index);
    const away = side === "query" ? -3 : 1;
    if (geometry.vertical) pen.rectangle(x + away, y - length / 2, 2, length, { fill });
    else pen.rectangle(x - length / 2, y + away, length, 2, { fill });
  }
}

/** Paints the titles of the two sides. @param {Pen} pen @param {HeadPicture} picture */
function paintSides(pen, { geometry, view, theme }) {
  const lettering = { size: 11, weight: 600, fill: theme.muted, middle: true };
  const [query, key] = ["query: looks", "key: is looked at"];
  if (geometry.vertical) {
    pen.rectangle(0, 0, view.width, 20, { fill: theme.background });
    pen.text(query, geometry.near - view.x - 9, 10, { ...lettering, anchor: "end" });
    pen.text(key, geometry.far - view.x + 9, 10, lettering);
  } else {
    pen.text(query, 8, 12, lettering);
    pen.text(key, 8, view.height - 12, lettering);
  }
}

/**
 * Paints the lines and weights of active units on top of the faded picture.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Chosen} chosen
 */
export function paintChosen(pen, picture, { side, units, targets, lines, mean, color }) {
  const { model, geometry, places } = picture;
  const other = side === "query" ? "key" : "query";
  const marked = targets.filter((unit) => mean[unit] >= LEAST_NUMBER * model.full && geometry.every === 1);
  paintLines(pen, picture, lines);
  for (const unit of marked) paintGround(pen, picture, other, unit, mean[unit], color);
  paintUnits(pen, picture, new Set(marked));
  for (const unit of marked) paintShare(pen, picture, other, unit, mean[unit]);
  paintSides(pen, picture);
  for (const unit of units) if (places.has(unit)) paintTag(pen, picture, side, placeOf(picture, unit));
}

/** Paints a token's weight as its background color.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} unit @param {number} weight
 * @param {string} fill */
function paintGround(pen, picture, side, unit, weight, fill) {
  const index = placeOf(picture, unit);
  const [x, y] = labelPlace(picture, side, index);
  const width = labelWidth(picture, index) + 8;
  const alpha = 0.08 + 0.5 * Math.sqrt(Math.min(weight / picture.model.full, 1));
  pen.rectangle(boxStart(picture, side, x, width, 4), y - 9, width, 18, { fill, alpha, radius: 4 });
}

/** Paints a token's weight as a number next to it, if there is space.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} unit @param {number} weight */
function paintShare(pen, picture, side, unit, weight) {
  const { geometry, theme, measure } = picture;
  const index = placeOf(picture, unit);
  const [x, y] = labelPlace(picture, side, index);
  const text = formatted(weight, 2);
  const away = side === "query" ? -1 : 1;
  const lettering = { size: 11, fill: theme.ink, anchor: alignment(geometry.vertical, side), middle: true };
  if (geometry.vertical) pen.text(text, x + away * (labelWidth(picture, index) + 10), y, lettering);
  else if (measure(text, 11) < geometry.starts[index + 1] - geometry.starts[index] + 2) {
    pen.text(text, x, y + away * 18, lettering);
  }
}

/** @param {HeadPicture} picture @param {number} index */
function labelWidth(picture, index) {
  return picture.measure(labelOf(picture, index), picture.geometry.size);
}

/** @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} index */
function paintTag(pen, picture, side, index) {
  const { geometry, theme, measure } = picture;
  const [x, y] = labelPlace(picture, side, index);
  const width = measure(labelOf(picture, index, 600), geometry.size, 600) + 10;
  const left = boxStart(picture, side, x, width, 5);
  pen.rectangle(left, y - 9.5, width, 19, { fill: theme.ink, radius: 5 });
  paintLabel(pen, picture, side, index, theme.background, 600);
}

/**
 * Paints the keyboard cursor.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {import("./layout.js").Place} cursor
 */
export function paintCursor(pen, picture, { side, index }) {
  const [x, y] = labelPlace(picture, side, index);
  const width = labelWidth(picture, index) + 12;
  const left = boxStart(picture, side, x, width, 6);
  pen.rectangle(left, y - 10.5, width, 21, { stroke: picture.theme.accent, line: 2, radius: 6 });
}
