// The data of the model view (thumbnails, labels and measures), and functions that sort and arrange the heads.

import { Payload } from "../core/payload.js";
import { formatNumber, makeVisible } from "../core/text.js";

/**
 * The description from `views/model_view.py`.
 *
 * @typedef {object} GridDescription
 * @property {string} key
 * @property {number} layerCount
 * @property {number} headCount
 * @property {number} side size of a thumbnail in cells
 * @property {number} block number of rows and columns that a cell aggregates
 * @property {string} unit "tokens" or "words"
 * @property {number} unitCount
 * @property {string[]} labels the distinct labels of heads, including ""
 * @property {boolean} marked whether labeled heads are marked by a line
 * @property {string} axes titles of a thumbnail's axes
 * @property {string[]} measures names of the sort keys
 * @property {string} caption
 * @property {string} source names of the text and the model, for the caption of files
 * @property {string} valueName
 * @property {string} fileName
 * @property {import("../core/scale.js").Scale} scale
 * @property {boolean} above whether values exceed the scale
 * @property {HeadIndex[]} selected selected heads
 */

/** @typedef {ReturnType<typeof unpackThumbnails>} GridModel */
/** @typedef {{layer: number, head: number}} HeadIndex the indices of a head and its layer, from 0 */
/** @typedef {{row: number, column: number}} Slot a position in the grid of thumbnails */
/** @typedef {{measure: string | null, heads: boolean, layers: boolean}} Sort null: the order of the heads in the model
 * */
/** @typedef {{layer: number, heads: number[], mean: number}} Row */
/** @typedef {ReturnType<typeof computeGridLayout>} GridGeometry */

const MIN_SIDE = 16; // minimum size of a thumbnail in pixels; if there is less space, the picture scrolls horizontally
const MAX_SIDE = 132;
const SPACE = 7; // gap between thumbnails, with space for the mark of a labeled head
const NUMBER_HEIGHT = 14; // height of a head number above a thumbnail
/** Gap between a number and its thumbnails. */
export const GAP = 8;
/** @type {Sort} */
export const UNSORTED = { measure: null, heads: true, layers: true };

/** @param {Uint8Array} bytes */
export function unpackThumbnails(bytes) {
  /** @type {Payload<GridDescription>} */
  const payload = new Payload(bytes);
  const { description } = payload;
  const labelIndices = payload.numbers("labeled", Uint16Array);
  return {
    ...description,
    /** Label of each head, [layer][head] */
    labels: Array.from({ length: description.layerCount }, (_, layer) => {
      const start = layer * description.headCount;
      return Array.from(
        labelIndices.subarray(start, start + description.headCount),
        (name) => description.labels[name],
      );
    }),
    source: description.source && makeVisible(description.source),
    lightTable: payload.numbers("light", Uint8Array),
    darkTable: payload.numbers("dark", Uint8Array),
    /** Values of the measures, [measure, layer, head] */
    numbers: payload.has("numbers") ? payload.numbers("numbers", Float64Array) : new Float64Array(),
    /** Indices into the color table: [layer, head, row, column] */
    entries: payload.numbers("entries", Uint8Array),
    below: false,
    missing: false,
  };
}

/**
 * Returns the values of a measure for all heads of a layer.
 *
 * @param {GridModel} model
 * @param {string} measure
 * @param {number} layer
 */
export function getMeasure({ measures, layerCount, headCount, numbers }, measure, layer) {
  const start = (measures.indexOf(measure) * layerCount + layer) * headCount;
  return numbers.subarray(start, start + headCount);
}

/**
 * Returns the rows of the picture from top to bottom. Each row has a layer and its heads, sorted in descending order.
 *
 * @param {GridModel} model
 * @param {Sort} sort
 * @returns {Row[]}
 */
export function arrangeRows(model, { measure, heads: byHead, layers: byLayer }) {
  const rows = Array.from({ length: model.layerCount }, (_, layer) => {
    const values = measure === null ? null : getMeasure(model, measure, layer);
    const heads = Array.from({ length: model.headCount }, (_, head) => head);
    if (values && byHead) heads.sort((a, b) => values[b] - values[a]); // The sort is stable: ties keep their order.
    const mean = values ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
    return { layer, heads, mean };
  });
  return measure !== null && byLayer ? rows.sort((a, b) => b.mean - a.mean) : rows;
}

/** Returns whether each thumbnail needs its own head number. @param {Sort} sort */
export function hasOwnNumbers(sort) {
  return sort.measure !== null && sort.heads;
}

/** Returns a sentence on the order of the heads; "" for the order of the model. @param {Sort} sort */
export function describeOrder({ measure, heads, layers }) {
  if (measure === null || !(heads || layers)) return "";
  const order = [heads ? "heads within each layer" : "", layers ? "layers by their mean" : ""].filter(
    Boolean,
  );
  return `Sorted by ${measure}, largest first: ${order.join(", ")}`;
}

/** @param {GridModel} model */
export function describeBlocks({ block, unit, unitCount }) {
  return block === 1 ? "" : `${unitCount} ${unit}: each cell is the largest of ${block} × ${block} values`;
}

/**
 * Returns the layout for a width, in CSS pixels.
 *
 * @param {Pick<GridModel, "layerCount" | "headCount">} model
 * @param {number} width
 * @param {Sort} sort
 * @param {import("../core/text.js").Measure} measure
 */
export function computeGridLayout({ layerCount, headCount }, width, sort, measure) {
  const axis = Math.max(measure("layer ↓", 11, 600), measure("head →", 11, 600));
  const left = Math.ceil(axis) + GAP;
  const numberHeight = hasOwnNumbers(sort) ? NUMBER_HEIGHT : 0;
  const room = Math.floor((width - left) / headCount) - SPACE;
  const side = Math.min(Math.max(room, MIN_SIDE), MAX_SIDE);
  const top = numberHeight ? 22 : 36;
  const [pitchX, pitchY] = [side + SPACE, side + SPACE + numberHeight];
  return {
    left,
    top,
    own: numberHeight,
    side,
    pitchX,
    pitchY,
    width: left + headCount * pitchX,
    height: top + layerCount * pitchY,
  };
}

/**
 * Returns the upper left corner of a thumbnail, without its number.
 *
 * @param {GridGeometry} geometry
 * @param {Slot} slot
 */
export function getCorner({ left, top, own, pitchX, pitchY }, { row, column }) {
  return { x: left + column * pitchX, y: top + row * pitchY + own };
}

/**
 * Returns the head whose thumbnail, including the gap around it, contains a point, or null.
 *
 * @param {Row[]} rows
 * @param {GridGeometry} geometry
 * @param {number} x
 * @param {number} y
 * @returns {HeadIndex | null}
 */
export function findHead(rows, { left, top, pitchX, pitchY }, x, y) {
  const [row, column] = [Math.floor((y - top) / pitchY), Math.floor((x - left) / pitchX)];
  return rows[row]?.heads[column] === undefined ? null : getHead(rows, { row, column });
}

/** @param {Row[]} rows @param {Slot} slot @returns {HeadIndex} */
export function getHead(rows, { row, column }) {
  return { layer: rows[row].layer, head: rows[row].heads[column] };
}

/** @param {Row[]} rows @param {HeadIndex} headIndex @returns {Slot} */
export function findSlot(rows, { layer, head }) {
  const row = rows.findIndex((other) => other.layer === layer);
  return { row, column: rows[row].heads.indexOf(head) };
}

/** @param {GridModel} model */
export function hasMarkedLabels(model) {
  return model.marked && model.labels.some((row) => row.some(Boolean));
}

/** @param {HeadIndex} headIndex */
export function nameHead({ layer, head }) {
  return `Layer ${layer + 1}, head ${head + 1}`;
}

/**
 * Returns the label of a head, if any, and its sort key, as in "previous token · Previous 0.8312".
 *
 * @param {GridModel} model
 * @param {Sort} sort
 * @param {HeadIndex} headIndex
 */
export function describeHead(model, { measure }, { layer, head }) {
  const label = model.labels[layer][head] || "no label";
  if (measure === null) return label;
  return `${label} · ${measure} ${formatNumber(getMeasure(model, measure, layer)[head], 4)}`;
}

/** @param {GridModel} model @param {Sort} sort @param {HeadIndex} headIndex */
export function formatHead(model, sort, headIndex) {
  return `${nameHead(headIndex)} · ${describeHead(model, sort, headIndex)}`;
}
