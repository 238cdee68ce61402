// Painting of the head view, for the screen and for files.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { getHeadColor } from "../core/color.js";
import { MEAN } from "../core/selection.js";
import { formatNumber, isLabelVisible, isTick, truncateText } from "../core/text.js";
import { getAnchor, getVisibleRange } from "./layout.js";
import { labelUnit, tagUnit } from "./model.js";

/**
 * @typedef {import("../core/pen.js").Pen} Pen
 * @typedef {import("./lines.js").Line} Line
 * @typedef {import("../core/selection.js").Side} Side
 */

/**
 * @typedef {object} HeadPicture
 * @property {import("./model.js").HeadModel} model
 * @property {import("../core/theme.js").Theme} theme
 * @property {import("../core/text.js").Measure} measure
 * @property {import("./layout.js").HeadGeometry} geometry
 * @property {number[]} units indices of the visible tokens or words
 * @property {Map<number, number>} unitIndices index of a token or word → its index among the visible ones
 * @property {import("../core/pen.js").Area} viewport the visible area of the content
 */

/**
 * The selected tokens or words on one side, and their attention weights to the other side.
 *
 * @typedef {object} ActiveWeights
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Line[]} lines
 * @property {Float64Array} mean
 * @property {string} color
 */

const LEVELS = 16; // number of opacity levels; drawing all lines of a level as one path is fast
const MIN_ALPHA = 0.06;
const BAR = 30; // length of a bar that represents all of a query's attention
const MIN_NUMBER = 0.005; // minimum weight that is not rounded to 0.00

/**
 * Paints tokens and lines, which do not depend on the pointer and the pins.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {Line[]} lines
 * @param {Map<number, number>} bars shares of attention next to the queries
 */
export function paintHeads(pen, picture, lines, bars) {
  const { viewport, theme } = picture;
  pen.rectangle(0, 0, viewport.width, viewport.height, { fill: theme.background });
  paintLines(pen, picture, lines);
  paintBars(pen, picture, bars);
  paintUnits(pen, picture);
  paintSideTitles(pen, picture);
}

/**
 * Paints the attention of queries on hidden tokens as bars next to the queries.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Map<number, number>} bars
 */
function paintBars(pen, picture, bars) {
  const { geometry, theme } = picture;
  for (const [unit, share] of bars) {
    const index = getIndex(picture, unit);
    const [x, y] = getAnchor(picture, "query", index);
    const room = geometry.starts[index + 1] - geometry.starts[index];
    if (geometry.isVertical) {
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

/**
 * Paints lines, grouped by head and opacity. The opacity depends on the square root of the weight, the line width on
 * the weight itself.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Line[]} lines
 */
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
  // Paint strong lines last, so that they are on top.
  for (const [id, bucket] of [...buckets].sort(([one], [other]) => one - other)) {
    const share = (Math.floor(id / 1000) + 1) / LEVELS;
    pen.path(
      (path) => {
        for (const line of bucket) traceLine(path, picture, line);
      },
      {
        stroke: getSeriesColor(picture, bucket[0].head),
        alpha: MIN_ALPHA + (1 - MIN_ALPHA) * share ** 1.3,
        lineWidth: 0.7 + 2.8 * share ** 2,
      },
    );
  }
}

/** @param {HeadPicture} picture @param {number} unit */
function getIndex({ unitIndices }, unit) {
  return /** @type {number} */ (unitIndices.get(unit));
}

/** @param {import("../core/pen.js").Path} path @param {HeadPicture} picture @param {Line} line */
function traceLine(path, picture, { query, key }) {
  const [x, y] = getAnchor(picture, "query", getIndex(picture, query));
  const [u, v] = getAnchor(picture, "key", getIndex(picture, key));
  path.moveTo(x, y);
  if (picture.geometry.isVertical) path.bezierCurveTo((x + u) / 2, y, (x + u) / 2, v, u, v);
  else path.bezierCurveTo(x, (y + v) / 2, u, (y + v) / 2, u, v);
}

/**
 * @param {Pick<HeadPicture, "model" | "theme">} picture
 * @param {import("../core/selection.js").Head} head
 */
export function getSeriesColor({ model, theme }, head) {
  return head === MEAN ? theme.accent : getHeadColor(model.heads[head]);
}

/**
 * Paints labels. Special tokens have a muted color unless they are highlighted.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Set<number>} [highlighted]
 */
function paintUnits(pen, picture, highlighted) {
  const { units, theme, model } = picture;
  const [first, end] = getVisibleRange(picture);
  for (let index = first; index < end; index++) {
    const unit = units[index];
    if (!isUnitVisible(picture, index)) continue;
    const fill = model.units[unit].special && !highlighted?.has(unit) ? theme.muted : theme.ink;
    for (const side of SIDES) paintLabel(pen, picture, side, index, fill);
    if (model.units[unit].segment) paintSegment(pen, picture, index);
  }
}

/** Returns whether a label remains after thinning. @param {HeadPicture} picture @param {number} index */
function isUnitVisible({ model, units, geometry: { labelStep } }, index) {
  if (!model.isRuler || labelStep === 1) return isLabelVisible("", index, labelStep);
  return isTick(model.units[units[index]].residue, labelStep);
}

/** @type {Side[]} */
const SIDES = ["query", "key"];

/** @param {HeadPicture} picture @param {number} index */
function truncateLabel({ model, units, geometry, measure }, index, weight = 400) {
  // Bold labels are those of highlighted tokens, and include the number of a residue.
  const label = weight > 400 ? tagUnit(model, units[index]) : labelUnit(model, units[index]);
  return truncateText(label, geometry.labelLimit, geometry.size, measure, weight);
}

/** @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} index @param {string} fill */
function paintLabel(pen, picture, side, index, fill, weight = 400) {
  const [x, y] = computeLabelPosition(picture, side, index);
  const { isVertical, size } = picture.geometry;
  const lettering = { size, fill, weight, anchor: getAlignment(isVertical, side), isCentered: true };
  pen.text(truncateLabel(picture, index, weight), x, y, lettering);
}

/** @param {boolean} vertical @param {Side} side @returns {import("../core/pen.js").TextStyle["anchor"]} */
function getAlignment(vertical, side) {
  return vertical ? (side === "query" ? "end" : "start") : "middle";
}

/** @param {HeadPicture} picture @param {Side} side @param {number} index */
function computeLabelPosition(picture, side, index) {
  const [x, y] = getAnchor(picture, side, index);
  const offset = (side === "query" ? -1 : 1) * (picture.geometry.isVertical ? 9 : 16);
  return picture.geometry.isVertical ? [x + offset, y + 0.5] : [x, y + offset];
}

/**
 * Returns the left end of a box around a label.
 *
 * @param {HeadPicture} picture @param {Side} side @param {number} x @param {number} width @param {number} margin
 */
function computeBoxStart({ geometry }, side, x, width, margin) {
  if (!geometry.isVertical) return x - width / 2;
  return side === "query" ? x - width + margin : x - margin;
}

/**
 * Marks the tokens of the second text with a bar at the point where lines start or end.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {number} index
 */
function paintSegment(pen, picture, index) {
  const { geometry, theme } = picture;
  const fill = constants.secondText[theme.isDark ? "dark" : "light"];
  const length = Math.max(geometry.starts[index + 1] - geometry.starts[index] - 2, 0.5);
  for (const side of SIDES) {
    const [x, y] = getAnchor(picture, side, index);
    const offset = side === "query" ? -3 : 1;
    if (geometry.isVertical) pen.rectangle(x + offset, y - length / 2, 2, length, { fill });
    else pen.rectangle(x - length / 2, y + offset, length, 2, { fill });
  }
}

const KEY_TITLE_WIDTH = 104;

/** Paints the titles of the two sides. @param {Pen} pen @param {HeadPicture} picture */
function paintSideTitles(pen, { geometry, viewport, theme, measure }) {
  const lettering = { size: 11, weight: 600, fill: theme.muted, isCentered: true };
  const [query, key] = ["query: attends", "key: is attended to"];
  if (geometry.isVertical) {
    pen.rectangle(0, 0, viewport.width, 20, { fill: theme.background });
    // If labels are short, a title in a wide font could begin outside the picture.
    const end = Math.max(geometry.near - viewport.x - 9, viewport.x ? 0 : measure(query, 11, 600) + 4);
    pen.text(query, end, 10, { ...lettering, anchor: "end" });
    const x = geometry.far - viewport.x + 9;
    const last = viewport.width - Math.max(KEY_TITLE_WIDTH, measure(key, 11, 600) + 4);
    // On a phone, the labels may be narrower than the title, so the title starts further to the left.
    pen.text(key, x > last && x < last + 40 ? last : x, 10, lettering);
  } else {
    pen.text(query, 8, 12, lettering);
    pen.text(key, 8, viewport.height - 12, lettering);
  }
}

/**
 * Paints the lines and weights of active tokens or words on top of the faded picture.
 *
 * @param {Pen} pen
 * @param {HeadPicture} picture
 * @param {ActiveWeights} active
 */
export function paintActive(pen, picture, { side, units, targets, lines, mean, color }) {
  const { model, geometry, unitIndices } = picture;
  const other = side === "query" ? "key" : "query";
  const highlighted = targets.filter(
    (unit) => mean[unit] >= MIN_NUMBER * model.full && geometry.labelStep === 1,
  );
  paintLines(pen, picture, lines);
  for (const unit of highlighted) paintWeightColor(pen, picture, other, unit, mean[unit], color);
  paintUnits(pen, picture, new Set(highlighted));
  for (const unit of highlighted) paintWeight(pen, picture, other, unit, mean[unit]);
  paintSideTitles(pen, picture);
  for (const unit of units) if (unitIndices.has(unit)) paintTag(pen, picture, side, getIndex(picture, unit));
}

/**
 * Paints a token's weight as its background color.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} unit @param {number} weight
 * @param {string} fill
 */
function paintWeightColor(pen, picture, side, unit, weight, fill) {
  const index = getIndex(picture, unit);
  const [x, y] = computeLabelPosition(picture, side, index);
  const width = measureLabel(picture, index) + 8;
  const alpha = 0.08 + 0.5 * Math.sqrt(Math.min(weight / picture.model.full, 1));
  pen.rectangle(computeBoxStart(picture, side, x, width, 4), y - 9, width, 18, { fill, alpha, radius: 4 });
}

/**
 * Paints a token's weight as a number next to it, if there is space.
 *
 * @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} unit @param {number} weight
 */
function paintWeight(pen, picture, side, unit, weight) {
  const { geometry, theme, measure } = picture;
  const index = getIndex(picture, unit);
  const [x, y] = computeLabelPosition(picture, side, index);
  const text = formatNumber(weight, 2);
  const direction = side === "query" ? -1 : 1;
  const lettering = {
    size: 11,
    fill: theme.ink,
    anchor: getAlignment(geometry.isVertical, side),
    isCentered: true,
  };
  if (geometry.isVertical) pen.text(text, x + direction * (measureLabel(picture, index) + 10), y, lettering);
  else if (measure(text, 11) < geometry.starts[index + 1] - geometry.starts[index] + 2) {
    pen.text(text, x, y + direction * 18, lettering);
  }
}

/** @param {HeadPicture} picture @param {number} index */
function measureLabel(picture, index) {
  return picture.measure(truncateLabel(picture, index), picture.geometry.size);
}

/** @param {Pen} pen @param {HeadPicture} picture @param {Side} side @param {number} index */
function paintTag(pen, picture, side, index) {
  const { geometry, theme, measure } = picture;
  const [x, y] = computeLabelPosition(picture, side, index);
  const width = measure(truncateLabel(picture, index, 600), geometry.size, 600) + 10;
  const left = computeBoxStart(picture, side, x, width, 5);
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
  const [x, y] = computeLabelPosition(picture, side, index);
  const width = measureLabel(picture, index) + 12;
  const left = computeBoxStart(picture, side, x, width, 6);
  pen.rectangle(left, y - 10.5, width, 21, { stroke: picture.theme.accent, lineWidth: 2, radius: 6 });
}
