// What is drawn: the units of a text, and the numbers that their attention is computed from.

import { Payload } from "../core/payload.js";
import { visibleText } from "../core/text.js";
import { MEAN } from "../core/view.js";

/** @typedef {import("../core/view.js").Head} Head */

/**
 * What `views/head_view.py` says of a layer.
 *
 * @typedef {object} Described
 * @property {string} key
 * @property {number} layer from 1
 * @property {number} layers
 * @property {number[] | null} [layerNumbers] what the layers are called, where they are not all of a model's
 * @property {number[]} heads
 * @property {boolean} rolled whether the measure is of the layer as a whole
 * @property {number} tokenCount
 * @property {boolean} [words] whether the units are words
 * @property {string[]} texts of the units
 * @property {{texts: string[], full: number} | null} [other] of words where these are tokens, and the other way round
 * @property {number} scaling of queries times keys
 * @property {number} full what the strongest line stands for
 * @property {string[][]} labels [layer][head], a word for what a head does; none where they arrive later, or never
 * @property {string} title
 * @property {string} valueName
 * @property {string} total
 * @property {string} caption
 * @property {string} fileName
 */

/**
 * A token or word.
 *
 * @typedef {{text: string, segment: number, special: boolean, first: number, pieces: number}} Unit
 */

/** @typedef {ReturnType<typeof unpackHeads>} HeadModel */

/** @param {Uint8Array} bytes */
export function unpackHeads(bytes) {
  const payload = new Payload(bytes);
  /** @type {Described} */
  const described = payload.described;
  const { texts, full, other } = described;
  return {
    ...described,
    words: described.words ?? false,
    ...drawnFrom(payload, { texts, full }, ""),
    /** The same text in the other units, where a reader may change to them. */
    other: other ? drawnFrom(payload, other, "other.") : null,
    /** [head, unit, unit], or of tokens where there are other units, if those are fewer numbers than queries and keys */
    weights: payload.has("weights") ? payload.numbers("weights", Float32Array) : null,
    vectors: payload.has("queries") ? vectorsOf(payload) : null,
  };
}

/**
 * Tokens or words, and what the strongest line between them stands for.
 *
 * @param {Payload} payload
 * @param {{texts: string[], full: number}} described
 * @param {string} of what the names of their arrays begin with
 */
function drawnFrom(payload, { texts, full }, of) {
  const firsts = payload.numbers(`${of}firsts`, Uint16Array);
  const segments = payload.numbers(`${of}segments`, Uint8Array);
  const specials = payload.numbers(`${of}specials`, Uint8Array);
  /** @type {Unit[]} */
  const units = texts.map((text, i) => ({
    text,
    segment: segments[i],
    special: specials[i] === 1,
    first: firsts[i],
    pieces: (firsts[i + 1] ?? payload.described.tokenCount) - firsts[i],
  }));
  return { units, names: units.map((unit) => visibleText(unit.text)), full };
}

/**
 * The model in words, or in tokens, as far as it holds both.
 *
 * @param {HeadModel} model
 * @param {boolean} words
 * @returns {HeadModel}
 */
export function inWords(model, words) {
  const { units, names, full, other } = model;
  if (!other || model.words === words) return model;
  return { ...model, ...other, words, other: { units, names, full } };
}

/**
 * What attention is computed from.
 *
 * @param {Payload} payload
 */
function vectorsOf(payload) {
  return {
    dim: payload.shape("queries")[2],
    /** [head, token, dim] */
    queries: payload.numbers("queries", Float32Array),
    keys: payload.numbers("keys", Float32Array),
    /** [head, token], what weights are multiplied with */
    lengths: payload.has("lengths") ? payload.numbers("lengths", Float32Array) : null,
    /** A bit for each key that may be looked at; one row for all queries, or one for each. */
    mask: payload.has("mask") ? payload.numbers("mask", Uint8Array) : null,
    maskRows: payload.has("mask") ? payload.shape("mask")[0] : 0,
  };
}

/** @typedef {ReturnType<typeof vectorsOf>} Vectors */

/**
 * What a layer is called: its number in the model.
 *
 * @param {Pick<HeadModel, "layerNumbers">} model
 * @param {number} layer from 1, among those that are there
 */
export function layerName({ layerNumbers }, layer) {
  return String(layerNumbers?.[layer - 1] ?? layer);
}

/**
 * "ground (11)"
 *
 * @param {HeadModel} model
 * @param {number} unit
 */
export function unitName(model, unit) {
  return `${model.names[unit]} (${model.units[unit].first})`;
}

/**
 * The heads drawn, as a title names them.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 */
export function seriesName({ heads }, series) {
  const [first] = series;
  if (series.length === 1) {
    if (first !== MEAN) return `head ${heads[first] + 1}`;
    return heads.length > 1 ? `mean of ${heads.length} heads` : "mean over the heads";
  }
  if (series.length === heads.length) return "all heads";
  return `heads ${series.map((head) => heads[Number(head)] + 1).join(", ")}`;
}
