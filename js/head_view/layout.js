// Computes the layout of tokens and lines, in columns or in reading direction.

import { computeLabelStep, computeRulerStep, measureWidest } from "../core/text.js";

/**
 * @typedef {import("../core/pen.js").Area} Area
 * @typedef {import("../core/text.js").Measure} Measure
 * @typedef {import("../core/selection.js").Side} Side
 */

/** @typedef {{width: number, height: number}} Box */
/** @typedef {{side: Side, index: number}} Place a unit (token or word) as query or key, by its index among the visible
 * units */

/**
 * The geometry of the columns layout or of the reading layout. The visible token or word i extends from starts[i] to
 * starts[i + 1] along the main axis, which points down in the columns layout and to the right in the reading layout.
 * Along the other axis, lines extend from `near` (queries) to `far` (keys).
 *
 * @typedef {object} HeadGeometry
 * @property {boolean} isVertical
 * @property {number} size font size of the labels
 * @property {number} labelStep step between drawn labels: 1 if all are drawn, larger if labels are thinned
 * @property {Float64Array} starts
 * @property {number} near
 * @property {number} far
 * @property {number} labelLimit
 * @property {number} contentWidth
 * @property {number} contentHeight
 */

const ROW_PITCH = 23;
const MIN_PITCH = 13; // minimum distance between labels; below it, labels are thinned
const SPAN = [140, 560]; // distance between the columns
const NUMBER_ROOM = 46; // space for a weight next to the labels
const LABEL_ROOM = 168;
const READING_HEIGHT = 330;
const TOKEN_GAP = 14;
const EDGE = 6;

/**
 * @param {string[]} labels labels of the visible tokens or words
 * @param {Box} box
 * @param {Pick<import("../core/selection.js").Options, "layout" | "fit">} options
 * @param {Measure} measure
 * @param {boolean} [isRuler] whether the tokens are residues, whose numbers remain when labels are thinned
 * @returns {HeadGeometry}
 */
export function computeHeadLayout(labels, box, { layout, fit }, measure, isRuler = false) {
  const geometry =
    layout === "columns"
      ? layOutColumns(labels, box, fit, measure)
      : layOutReading(labels, box, fit, measure);
  if (!isRuler || geometry.labelStep === 1) return geometry;
  const pitch = (geometry.starts[labels.length] - geometry.starts[0]) / labels.length;
  return { ...geometry, labelStep: computeRulerStep(pitch, geometry.isVertical ? MIN_PITCH : 40) };
}

/** @param {string[]} labels @param {Box} box @param {boolean} fit @param {Measure} measure @returns {HeadGeometry} */
function layOutColumns(labels, box, fit, measure) {
  const head = 26;
  const count = labels.length;
  const fitting = (box.height - head - EDGE) / count;
  const pitch = fit ? Math.min(ROW_PITCH, Math.max(fitting, 0.5)) : ROW_PITCH;
  const size = pitch >= 18 ? 13 : 11;
  const maxLabelWidth = Math.min(LABEL_ROOM, box.width * 0.27);
  const room = Math.ceil(measureWidest(labels, size, measure, maxLabelWidth)) + 14;
  const gutter = room + Math.min(NUMBER_ROOM, box.width * 0.1);
  const span = Math.min(Math.max(box.width - 2 * gutter, SPAN[0]), SPAN[1]);
  const left = Math.max((box.width - 2 * gutter - span) / 2, 0);
  return {
    isVertical: true,
    size,
    labelStep: computeLabelStep(count, pitch, MIN_PITCH),
    starts: Float64Array.from({ length: count + 1 }, (_, i) => head + i * pitch),
    near: left + gutter,
    far: left + gutter + span,
    labelLimit: room - 12,
    contentWidth: Math.max(box.width, 2 * gutter + span),
    contentHeight: head + count * pitch + EDGE,
  };
}

/** @param {string[]} labels @param {Box} box @param {boolean} fit @param {Measure} measure @returns {HeadGeometry} */
function layOutReading(labels, box, fit, measure) {
  const size = 13;
  const widths = labels.map((label) => Math.min(measure(label, size), LABEL_ROOM) + TOKEN_GAP);
  const totalWidth = widths.reduce((sum, width) => sum + width, 0);
  const room = box.width - 2 * EDGE;
  const shrink = fit && totalWidth > room ? room / totalWidth : 1;
  const starts = new Float64Array(labels.length + 1);
  starts[0] = EDGE + Math.max((room - totalWidth * shrink) / 2, 0);
  widths.forEach((width, i) => {
    starts[i + 1] = starts[i] + width * shrink;
  });
  return {
    isVertical: false,
    size,
    labelStep: computeLabelStep(labels.length, (totalWidth * shrink) / labels.length, shrink < 1 ? 40 : 0),
    starts,
    near: 62,
    far: READING_HEIGHT - 62,
    labelLimit: LABEL_ROOM,
    contentWidth: Math.max(box.width, totalWidth * shrink + 2 * EDGE),
    contentHeight: READING_HEIGHT,
  };
}

/**
 * Returns the point at which the attention lines of a token or word start (query) or end (key).
 *
 * @param {{geometry: HeadGeometry, viewport: Area}} picture
 * @param {Side} side
 * @param {number} index index among the visible tokens or words
 */
export function getAnchor({ geometry, viewport }, side, index) {
  const along = (geometry.starts[index] + geometry.starts[index + 1]) / 2;
  const across = side === "query" ? geometry.near : geometry.far;
  return geometry.isVertical
    ? [across - viewport.x, along - viewport.y]
    : [along - viewport.x, across - viewport.y];
}

/**
 * Returns the first index and the end index (exclusive) of the tokens or words in the visible area.
 *
 * @param {{geometry: HeadGeometry, viewport: Area}} picture
 */
export function getVisibleRange({ geometry, viewport }) {
  const [from, room] = geometry.isVertical ? [viewport.y, viewport.height] : [viewport.x, viewport.width];
  const first = findSlot(geometry, from);
  return [Math.max(first, 0), Math.min(findSlot(geometry, from + room) + 1, geometry.starts.length - 1)];
}

/**
 * Returns the index of the token or word at a position along the main axis: -1 before the first one; the number of
 * tokens or words after the last one.
 *
 * @param {HeadGeometry} geometry
 * @param {number} position
 */
function findSlot({ starts }, position) {
  if (position < starts[0]) return -1;
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * Returns the token or word at a point of the view, or null for a point between queries and keys.
 *
 * @param {{geometry: HeadGeometry, viewport: Area}} picture
 * @param {number} x
 * @param {number} y
 * @returns {Place | null}
 */
export function findUnit({ geometry, viewport }, x, y) {
  const [along, across] = geometry.isVertical
    ? [y + viewport.y, x + viewport.x]
    : [x + viewport.x, y + viewport.y];
  const index = findSlot(geometry, along);
  if (index < 0 || index >= geometry.starts.length - 1) return null;
  const reach = (geometry.far - geometry.near) * 0.2;
  if (across < geometry.near + reach) return { side: "query", index };
  return across > geometry.far - reach ? { side: "key", index } : null;
}
