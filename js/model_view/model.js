// What the model view draws: thumbnails, labels and measures; the order of heads; where each one stands.

import { Payload } from "../core/payload.js";
import { formatted, visibleText } from "../core/text.js";

/**
 * What `views/model_view.py` says.
 *
 * @typedef {object} Described
 * @property {string} key
 * @property {number} layerCount
 * @property {number} headCount
 * @property {number} side cells of a thumbnail's side
 * @property {number} block rows and columns of values that a cell stands for
 * @property {string} unit "tokens" or "words"
 * @property {number} unitCount
 * @property {string[]} labels what is said of heads, each once; "" where nothing stands out
 * @property {boolean} marked whether heads with a label are marked
 * @property {string} axes of a thumbnail
 * @property {string[]} measures names of what heads can be sorted by
 * @property {string} caption
 * @property {string} source text and model, for files
 * @property {string} valueName
 * @property {string} fileName
 * @property {import("../core/scale.js").Scale} scale
 * @property {boolean} above whether values lie beyond the scale
 * @property {Which[]} chosen heads that are shown elsewhere
 */

/** @typedef {ReturnType<typeof unpackThumbnails>} GridModel */
/** @typedef {{layer: number, head: number}} Which a head, both from 0 */
/** @typedef {{row: number, column: number}} Slot a place in the picture */
/** @typedef {{measure: string | null, heads: boolean, layers: boolean}} Sort null: as in the model */
/** @typedef {{layer: number, heads: number[], mean: number}} Row */
/** @typedef {ReturnType<typeof gridLayout>} GridGeometry */

const LEAST_SIDE = 16; // of a thumbnail, in pixels; below it the picture scrolls sideways instead
const MOST_SIDE = 132;
const SPACE = 7; // between thumbnails, with room for the line under a labelled one
const OWN_NUMBER = 14; // height of a thumbnail's own head number
/** Between a number and its thumbnails. */
export const GAP = 8;
/** @type {Sort} */
export const UNSORTED = { measure: null, heads: true, layers: true };

/** @param {Uint8Array} bytes */
export function unpackThumbnails(bytes) {
  const payload = new Payload(bytes);
  /** @type {Described} */
  const described = payload.described;
  const labelled = payload.numbers("labelled", Uint16Array);
  return {
    ...described,
    /** [layer][head] */
    labels: Array.from({ length: described.layerCount }, (_, layer) => {
      const start = layer * described.headCount;
      return Array.from(
        labelled.subarray(start, start + described.headCount),
        (name) => described.labels[name],
      );
    }),
    source: described.source && visibleText(described.source),
    lightTable: payload.numbers("light", Uint8Array),
    darkTable: payload.numbers("dark", Uint8Array),
    /** [measure, layer, head] */
    numbers: payload.has("numbers") ? payload.numbers("numbers", Float64Array) : new Float64Array(),
    /** Entries of the colour table: [layer, head, row, column] */
    entries: payload.numbers("entries", Uint8Array),
    below: false,
    missing: false,
  };
}

/**
 * A measure of every head of a layer.
 *
 * @param {GridModel} model
 * @param {string} measure
 * @param {number} layer
 */
export function measured({ measures, layerCount, headCount, numbers }, measure, layer) {
  const start = (measures.indexOf(measure) * layerCount + layer) * headCount;
  return numbers.subarray(start, start + headCount);
}

/**
 * The rows of the picture from the top: a layer, and its heads from the left; largest first where sorted.
 *
 * @param {GridModel} model
 * @param {Sort} sort
 * @returns {Row[]}
 */
export function arrangedRows(model, { measure, heads: byHead, layers: byLayer }) {
  const rows = Array.from({ length: model.layerCount }, (_, layer) => {
    const values = measure === null ? null : measured(model, measure, layer);
    const heads = Array.from({ length: model.headCount }, (_, head) => head);
    if (values && byHead) heads.sort((one, other) => values[other] - values[one]); // stable: ties stay as they are
    const mean = values ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
    return { layer, heads, mean };
  });
  return measure !== null && byLayer ? rows.sort((one, other) => other.mean - one.mean) : rows;
}

/** Whether each thumbnail needs its own head number, as columns stand for no head. @param {Sort} sort */
export function numbersItself(sort) {
  return sort.measure !== null && sort.heads;
}

/** How the picture is ordered, as a sentence; "" where it is as in the model. @param {Sort} sort */
export function orderSentence({ measure, heads, layers }) {
  if (measure === null || !(heads || layers)) return "";
  const what = [heads ? "heads within each layer" : "", layers ? "layers by their mean" : ""].filter(Boolean);
  return `Sorted by ${measure}, largest first: ${what.join(", ")}`;
}

/** @param {GridModel} model */
export function blockSentence({ block, unit, unitCount }) {
  return block === 1 ? "" : `${unitCount} ${unit}: each cell is the largest of ${block} × ${block} values`;
}

/**
 * Lengths in CSS pixels of a picture as wide as `width`.
 *
 * @param {Pick<GridModel, "layerCount" | "headCount">} model
 * @param {number} width
 * @param {Sort} sort
 * @param {import("../core/text.js").Measure} measure
 */
export function gridLayout({ layerCount, headCount }, width, sort, measure) {
  const axis = Math.max(measure("layer ↓", 11, 600), measure("head →", 11, 600));
  const left = Math.ceil(axis) + GAP;
  const own = numbersItself(sort) ? OWN_NUMBER : 0;
  const room = Math.floor((width - left) / headCount) - SPACE;
  const side = Math.min(Math.max(room, LEAST_SIDE), MOST_SIDE);
  const top = own ? 22 : 36;
  const [pitchX, pitchY] = [side + SPACE, side + SPACE + own];
  return {
    left,
    top,
    own,
    side,
    pitchX,
    pitchY,
    width: left + headCount * pitchX,
    height: top + layerCount * pitchY,
  };
}

/**
 * The thumbnail's upper left corner, without its number.
 *
 * @param {GridGeometry} geometry
 * @param {Slot} slot
 */
export function cornerOf({ left, top, own, pitchX, pitchY }, { row, column }) {
  return { x: left + column * pitchX, y: top + row * pitchY + own };
}

/**
 * The head under a point, its share of the space around it included; or null.
 *
 * @param {Row[]} rows
 * @param {GridGeometry} geometry
 * @param {number} x
 * @param {number} y
 * @returns {Which | null}
 */
export function headUnder(rows, { left, top, pitchX, pitchY }, x, y) {
  const [row, column] = [Math.floor((y - top) / pitchY), Math.floor((x - left) / pitchX)];
  return rows[row]?.heads[column] === undefined ? null : headAt(rows, { row, column });
}

/** @param {Row[]} rows @param {Slot} slot @returns {Which} */
export function headAt(rows, { row, column }) {
  return { layer: rows[row].layer, head: rows[row].heads[column] };
}

/** @param {Row[]} rows @param {Which} which @returns {Slot} */
export function slotOf(rows, { layer, head }) {
  const row = rows.findIndex((one) => one.layer === layer);
  return { row, column: rows[row].heads.indexOf(head) };
}

/** @param {GridModel} model */
export function marksLabels(model) {
  return model.marked && model.labels.some((row) => row.some(Boolean));
}

/** @param {Which} which */
export function headName({ layer, head }) {
  return `Layer ${layer + 1}, head ${head + 1}`;
}

/**
 * "previous token · Previous 0.8312": its label, if it has one, and what it is sorted by.
 *
 * @param {GridModel} model
 * @param {Sort} sort
 * @param {Which} which
 */
export function headDetail(model, { measure }, { layer, head }) {
  const label = model.labels[layer][head] || "no label";
  if (measure === null) return label;
  return `${label} · ${measure} ${formatted(measured(model, measure, layer)[head], 4)}`;
}

/** @param {GridModel} model @param {Sort} sort @param {Which} which */
export function headSentence(model, sort, which) {
  return `${headName(which)} · ${headDetail(model, sort, which)}`;
}
