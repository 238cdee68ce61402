// The data of a head view: the tokens or words of a text, and weights, or queries and keys, for their attention.

import { Payload } from "../core/payload.js";
import { MEAN } from "../core/selection.js";
import { isTick, makeVisible } from "../core/text.js";

/** @typedef {import("../core/selection.js").Head} Head */

/**
 * The description of a layer from `views/head_view.py`.
 *
 * @typedef {object} HeadDescription
 * @property {string} key
 * @property {number} layer from 1
 * @property {number} layers
 * @property {number[] | null} [layerNumbers] numbers of the layers, if they are not all layers of the model
 * @property {number[]} heads
 * @property {boolean} rolled whether the measure applies to the layer as a whole, not to single heads
 * @property {number} tokenCount
 * @property {boolean} [words] whether `texts` contains words instead of tokens
 * @property {string[]} texts texts of the tokens or words
 * @property {{texts: string[], full: number} | null} [other] `texts` and `full` of the other type of units (words or
 * tokens)
 * @property {number} scaling factor by which products of queries and keys are multiplied
 * @property {number} full the weight of a fully opaque line
 * @property {string[][]} labels one-word labels of the heads, [layer][head]; empty if none were sent
 * @property {string} title
 * @property {string} valueName
 * @property {string} total
 * @property {string} caption
 * @property {string} fileName
 */

/**
 * A token or word.
 *
 * @typedef {{text: string, segment: number, special: boolean, first: number, pieces: number, residue: number | null}} Unit
 *   `residue`: the number of a residue, from 1
 */

/** @typedef {ReturnType<typeof unpackHeads>} HeadModel */

/** @param {Uint8Array} bytes */
export function unpackHeads(bytes) {
  /** @type {Payload<HeadDescription>} */
  const payload = new Payload(bytes);
  const { description } = payload;
  const { texts, full, other } = description;
  return {
    ...description,
    words: description.words ?? false,
    ...readUnits(payload, { texts, full }, ""),
    /** The same text in the other type of units (words or tokens), if the user can switch between both. */
    other: other ? readUnits(payload, other, "other.") : null,
    /**
     * Weights, [head, query, key]; between tokens if the user can switch to words; null if queries and keys were sent.
     */
    weights: payload.has("weights") ? payload.numbers("weights", Float32Array) : null,
    vectors: payload.has("queries") ? readVectors(payload) : null,
  };
}

/**
 * Returns tokens or words, and the weight of a fully opaque line.
 *
 * @param {Payload<HeadDescription>} payload
 * @param {{texts: string[], full: number}} description
 * @param {string} prefix prefix of the array names
 */
function readUnits(payload, { texts, full }, prefix) {
  const firsts = payload.numbers(`${prefix}firsts`, Uint16Array);
  const segments = payload.numbers(`${prefix}segments`, Uint8Array);
  const specials = payload.numbers(`${prefix}specials`, Uint8Array);
  const hasResidues = payload.has(`${prefix}residues`);
  const residues = hasResidues ? payload.numbers(`${prefix}residues`, Uint16Array) : null;
  /** @type {Unit[]} */
  const units = texts.map((text, i) => ({
    text,
    segment: segments[i],
    special: specials[i] === 1,
    first: firsts[i],
    pieces: (firsts[i + 1] ?? payload.description.tokenCount) - firsts[i],
    residue: residues?.[i] || null,
  }));
  return { units, names: units.map((unit) => makeVisible(unit.text)), full, isRuler: hasResidues };
}

/**
 * Returns the model for words or for tokens, if the model contains both.
 *
 * @param {HeadModel} model
 * @param {boolean} words
 * @returns {HeadModel}
 */
export function switchUnits(model, words) {
  const { units, names, full, isRuler, other } = model;
  if (!other || model.words === words) return model;
  return { ...model, ...other, words, other: { units, names, full, isRuler } };
}

/**
 * Returns the data from which attention is computed.
 *
 * @param {Payload<HeadDescription>} payload
 */
function readVectors(payload) {
  return {
    dim: payload.shape("queries")[2],
    /** Query vectors, [head, token, dim] */
    queries: payload.numbers("queries", Float32Array),
    keys: payload.numbers("keys", Float32Array),
    /** Factors by which the weights are multiplied, [head, token] */
    lengths: payload.has("lengths") ? payload.numbers("lengths", Float32Array) : null,
    /** The attention mask, one bit per key: one row for all queries, or one row per query. */
    mask: payload.has("mask") ? payload.numbers("mask", Uint8Array) : null,
    maskRows: payload.has("mask") ? payload.shape("mask")[0] : 0,
  };
}

/** @typedef {ReturnType<typeof readVectors>} Vectors */

/**
 * Returns the name of a layer, which is its number in the model.
 *
 * @param {Pick<HeadModel, "layerNumbers">} model
 * @param {number} layer index among the available layers, from 1
 */
export function nameLayer({ layerNumbers }, layer) {
  return String(layerNumbers?.[layer - 1] ?? layer);
}

/**
 * Returns the name of a token or word with its position, such as "ground (11)", or "K10" for a residue.
 *
 * @param {Pick<HeadModel, "names" | "units">} model
 * @param {number} unit
 */
export function nameUnit(model, unit) {
  const { first, residue } = model.units[unit];
  return residue === null ? `${model.names[unit]} (${first})` : `${model.names[unit]}${residue}`;
}

/**
 * Returns the label of a token or word next to the lines; the label of each tenth residue includes its number.
 *
 * @param {Pick<HeadModel, "names" | "units">} model
 * @param {number} unit
 */
export function labelUnit(model, unit) {
  return isTick(model.units[unit].residue, 10) ? nameUnit(model, unit) : model.names[unit];
}

/**
 * Returns the short name of a token or word: without its position, but with the number of a residue.
 *
 * @param {Pick<HeadModel, "names" | "units">} model
 * @param {number} unit
 */
export function tagUnit(model, unit) {
  return model.units[unit].residue === null ? model.names[unit] : nameUnit(model, unit);
}

/**
 * Returns the name of the visible heads in a title.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 */
export function nameSeries({ heads }, series) {
  const [first] = series;
  if (series.length === 1) {
    if (first !== MEAN) return `head ${heads[first] + 1}`;
    return heads.length > 1 ? `mean of ${heads.length} heads` : "mean over the heads";
  }
  if (series.length === heads.length) return "all heads";
  return `heads ${series.map((head) => heads[Number(head)] + 1).join(", ")}`;
}
