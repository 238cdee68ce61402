// The data of the token map: the points of every layer and their tokens.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { Payload } from "../core/payload.js";
import { counted, formatted, visibleText } from "../core/text.js";

/**
 * The description of a map from `views/layer_map.py`.
 *
 * @typedef {object} Described
 * @property {string} key
 * @property {string} of hash of the map
 * @property {string[]} names distinct tokens or words
 * @property {string[]} parts labels of the texts, or names of the segments, or empty
 * @property {number} textCount
 * @property {string} what "tokens" or "words"
 * @property {string} caption
 * @property {string} variance a sentence on the explained variance
 * @property {[number, number] | null} explained share of the variance of all layers on each axis
 * @property {(number | null)[]} shares share of each layer's variance on both axes
 * @property {boolean} joined whether all layers share a plane
 * @property {string} fileName
 * @property {Shown} start the initial state
 * @property {number} began the revision at which the page mounted the map
 */

/** @typedef {"layer" | "all" | "each"} Mode one layer, all in one panel, or each in a panel of its own */
/** @typedef {"word" | "layer" | "part"} By what colors stand for */
/** @typedef {{mode: Mode, layer: number, by: By}} Shown */
/** @typedef {{index: number, layer: number}} Point a mark at a layer */
/** @typedef {{x: number, y: number}} Spot */
/** @typedef {ReturnType<typeof unpackMap>} MapModel */

/** Distinguishable colors; all other marks are gray. */
const COLORS = constants.heads;
const OTHERS = -1;

/** @param {Uint8Array} bytes */
export function unpackMap(bytes) {
  const payload = new Payload(bytes);
  /** @type {Described} */
  const described = payload.described;
  const [layerCount, count] = payload.shape("points");
  return {
    ...described,
    layerCount,
    count,
    names: described.names.map(visibleText),
    parts: described.parts.map(visibleText),
    lightTable: payload.numbers("light", Uint8Array),
    darkTable: payload.numbers("dark", Uint8Array),
    /** [layer, mark, 2] */
    points: payload.numbers("points", Float32Array),
    /** Name, text, position in the text, and part of each mark. */
    nameOf: payload.numbers("name", Uint16Array),
    textOf: payload.numbers("text", Uint16Array),
    positionOf: payload.numbers("position", Uint16Array),
    partOf: payload.numbers("part", Uint16Array),
  };
}

/**
 * The points of a layer, [mark, 2].
 *
 * @param {MapModel} model
 * @param {number} layer
 */
export function pointsOf({ points, count }, layer) {
  return points.subarray(2 * count * layer, 2 * count * (layer + 1));
}

/**
 * Interpolates points between two layers with easing.
 *
 * @param {ArrayLike<number>} from
 * @param {ArrayLike<number>} to
 * @param {number} share 0 to 1
 * @param {Float32Array} at output
 */
export function between(from, to, share, at) {
  const eased = share * share * (3 - 2 * share);
  for (let i = 0; i < at.length; i++) at[i] = from[i] + (to[i] - from[i]) * eased;
}

// Colors

/**
 * The color of each mark: `colorOf` is an index into `entries`, or -1 for gray.
 *
 * @typedef {object} Coloring
 * @property {string} title
 * @property {{label: string, color: string}[]} entries
 * @property {Int16Array} colorOf
 * @property {boolean} others whether some marks are gray
 * @property {boolean} ramp whether entries are steps of a color scale, of which only the ends have labels
 */

/**
 * @param {MapModel} model
 * @param {By} by
 * @param {string[]} ramp 256 colors from the background to a strong one
 * @returns {Coloring}
 */
export function coloring(model, by, ramp) {
  const { count, layerCount, parts, textCount } = model;
  if (by === "layer") {
    const labels = Array.from({ length: layerCount }, (_, layer) => `Layer ${layer}`);
    return onRamp("Layer", labels, new Int16Array(count), ramp);
  }
  if (by === "word") {
    const most = mostFrequent(model.nameOf, model.names.length);
    return distinct(model.what === "words" ? "Word" : "Token", model.names, model.nameOf, most);
  }
  if (parts.length) return distinct("Part", parts, model.partOf, mostFrequent(model.partOf, parts.length));
  const labels = Array.from({ length: textCount }, (_, text) => `Text ${text + 1}`);
  if (textCount > COLORS.length) return onRamp("Text", labels, Int16Array.from(model.textOf), ramp);
  return distinct("Text", labels, model.textOf, [...labels.keys()]);
}

/**
 * @param {string} title
 * @param {string[]} labels
 * @param {ArrayLike<number>} labelOf
 * @param {number[]} chosen the labels with a color, in the order of the colors
 * @returns {Coloring}
 */
function distinct(title, labels, labelOf, chosen) {
  const colored = chosen.slice(0, COLORS.length);
  const entryOf = new Map(colored.map((label, entry) => [label, entry]));
  return {
    title,
    entries: colored.map((label, entry) => ({ label: labels[label], color: COLORS[entry] })),
    colorOf: Int16Array.from(labelOf, (label) => entryOf.get(label) ?? OTHERS),
    others: colored.length < labels.length,
    ramp: false,
  };
}

/**
 * @param {string} title
 * @param {string[]} labels
 * @param {Int16Array} colorOf
 * @param {string[]} ramp
 * @returns {Coloring}
 */
function onRamp(title, labels, colorOf, ramp) {
  const last = Math.max(labels.length - 1, 1);
  // Skips colors that are too similar to the background.
  const entries = labels.map((label, i) => ({ label, color: ramp[Math.round(80 + (175 * i) / last)] }));
  return { title, entries, colorOf, others: false, ramp: true };
}

/** Labels by frequency, in descending order. @param {ArrayLike<number>} labelOf @param {number} labels */
function mostFrequent(labelOf, labels) {
  const times = new Uint32Array(labels);
  for (let i = 0; i < labelOf.length; i++) times[labelOf[i]]++;
  return [...times.keys()].sort((one, other) => times[other] - times[one]);
}

// Search and selection

/**
 * The marks whose name contains a text, ignoring case; null for an empty text.
 *
 * @param {MapModel} model
 * @param {string} wanted
 */
export function found(model, wanted) {
  const text = wanted.trim().toLowerCase();
  if (!text) return null;
  const holds = model.names.map((name) => name.toLowerCase().includes(text));
  return indices(model.count, (i) => holds[model.nameOf[i]]);
}

/**
 * The marks within a closed line, by the even-odd rule.
 *
 * @param {ArrayLike<number>} at x and y of each mark
 * @param {Spot[]} line
 */
export function enclosed(at, line) {
  return indices(at.length / 2, (i) => isWithin(at[2 * i], at[2 * i + 1], line));
}

/** @param {number} x @param {number} y @param {Spot[]} line */
function isWithin(x, y, line) {
  let within = false;
  for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
    const [a, b] = [line[i], line[j]];
    if (a.y > y !== b.y > y && x < ((b.x - a.x) * (y - a.y)) / (b.y - a.y) + a.x) within = !within;
  }
  return within;
}

/**
 * The mark closest to a spot, or null if none is within reach.
 *
 * @param {ArrayLike<number>} at
 * @param {Spot} spot
 * @param {number} reach
 */
export function nearest(at, { x, y }, reach) {
  let [best, least] = [-1, reach * reach];
  for (let i = 0; 2 * i < at.length; i++) {
    const distance = (at[2 * i] - x) ** 2 + (at[2 * i + 1] - y) ** 2;
    if (distance <= least) [best, least] = [i, distance];
  }
  return best < 0 ? null : { index: best, distance: Math.sqrt(least) };
}

/** @param {number} count @param {(index: number) => boolean} isWanted */
function indices(count, isWanted) {
  const wanted = [];
  for (let i = 0; i < count; i++) if (isWanted(i)) wanted.push(i);
  return wanted;
}

/**
 * The first mark of the next or previous text.
 *
 * @param {MapModel} model
 * @param {number} index
 * @param {1 | -1} step
 */
export function nextText({ textOf, count }, index, step) {
  let at = index;
  while (at >= 0 && at < count && textOf[at] === textOf[index]) at += step;
  if (at < 0) return 0;
  if (at >= count) return count - 1;
  while (at > 0 && textOf[at - 1] === textOf[at]) at--;
  return at;
}

// In words

const AROUND = 5; // number of context tokens on each side of a mark

/**
 * "ground · layer 3 · 1.20, −0.41"
 *
 * @param {MapModel} model
 * @param {Point} point
 */
export function sentence(model, { index, layer }) {
  const at = pointsOf(model, layer);
  const [x, y] = [at[2 * index], at[2 * index + 1]].map((place) => formatted(place, 2));
  return `${model.names[model.nameOf[index]]} · layer ${layer} · ${x}, ${y}`;
}

/**
 * The context of a mark in its text.
 *
 * @param {MapModel} model
 * @param {number} index
 */
export function surroundings({ textOf, nameOf, names, count }, index) {
  /** @param {number} from @param {number} to */
  const named = (from, to) => {
    const near = [];
    for (let i = Math.max(from, 0); i < Math.min(to, count); i++) {
      if (textOf[i] === textOf[index]) near.push(names[nameOf[i]]);
    }
    return near.join(" ");
  };
  const [first, last] = [index - AROUND, index + AROUND];
  const before = named(first, index);
  const after = named(index + 1, last + 1);
  return {
    before: textOf[first - 1] === textOf[index] ? `… ${before}` : before,
    after: textOf[last + 1] === textOf[index] ? `${after} …` : after,
  };
}

/** The number of the text, and its part. @param {MapModel} model @param {number} index */
export function whence({ textCount, textOf, positionOf, parts, partOf }, index) {
  const said = [];
  if (textCount > 1) said.push(`text ${counted(textOf[index] + 1)}`);
  if (parts.length) said.push(parts[partOf[index]]);
  return [...said, `position ${positionOf[index]}`].join(", ");
}
