// The data of the token map: the coordinates of the tokens in each layer, their names and their colors.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { Payload } from "../core/payload.js";
import { formatCount, formatNumber, makeVisible } from "../core/text.js";

/**
 * The description of a map from `views/layer_map.py`.
 *
 * @typedef {object} MapDescription
 * @property {string} key
 * @property {string} of hash of the map
 * @property {string[]} names distinct tokens or words
 * @property {string[]} parts labels of the texts, or names of the segments, or empty
 * @property {number} textCount
 * @property {string} what "tokens" or "words"
 * @property {string} caption
 * @property {string} variance a sentence on the explained variance
 * @property {[number, number] | null} explained share of the total variance that each axis explains
 * @property {(number | null)[]} shares share of each layer's variance that both axes together explain
 * @property {boolean} joined whether all layers share a plane
 * @property {string} fileName
 * @property {Display} start the initial state
 * @property {number} began the revision at which the page mounted the map
 */

/** @typedef {"layer" | "all" | "each"} Mode one layer, all layers in one panel, or each layer in its own panel */
/** @typedef {"word" | "layer" | "part"} By what colors represent */
/** @typedef {{mode: Mode, layer: number, by: By}} Display */
/** @typedef {{index: number, layer: number}} Point a mark at a layer */
/** @typedef {{x: number, y: number}} Spot */ /** @typedef {ReturnType<typeof unpackMap>} MapModel */

/** Distinguishable colors for labels. Marks with other labels are gray. */
const LABEL_COLORS = constants.heads;
const UNCOLORED = -1;

/** @param {Uint8Array} bytes */
export function unpackMap(bytes) {
  /** @type {Payload<MapDescription>} */
  const payload = new Payload(bytes);
  const { description } = payload;
  const [layerCount, count] = payload.shape("points");
  return {
    ...description,
    layerCount,
    count,
    names: description.names.map(makeVisible),
    parts: description.parts.map(makeVisible),
    lightTable: payload.numbers("light", Uint8Array),
    darkTable: payload.numbers("dark", Uint8Array),
    /** Coordinates of the marks, [layer, mark, 2] */
    points: payload.numbers("points", Float32Array),
    /** Name, text, position in the text, and part of each mark. */
    nameOf: payload.numbers("name", Uint16Array),
    textOf: payload.numbers("text", Uint16Array),
    positionOf: payload.numbers("position", Uint16Array),
    partOf: payload.numbers("part", Uint16Array),
  };
}

/**
 * Returns the points of a layer, [mark, 2].
 *
 * @param {MapModel} model
 * @param {number} layer
 */
export function getPoints({ points, count }, layer) {
  return points.subarray(2 * count * layer, 2 * count * (layer + 1));
}

/**
 * Interpolates points between two layers with easing.
 *
 * @param {ArrayLike<number>} from
 * @param {ArrayLike<number>} to
 * @param {number} share 0 to 1
 * @param {Float32Array} output array for the result
 */
export function interpolate(from, to, share, output) {
  const eased = share * share * (3 - 2 * share);
  for (let i = 0; i < output.length; i++) output[i] = from[i] + (to[i] - from[i]) * eased;
}

// Colors

/**
 * The color of each mark: `colorOf` is an index into `entries`, or -1 for gray.
 *
 * @typedef {object} Coloring
 * @property {string} title
 * @property {{label: string, color: string}[]} entries
 * @property {Int16Array} colorOf
 * @property {boolean} hasOthers whether some marks are gray
 * @property {boolean} isRamp whether entries are steps of a color scale with labels only at its ends
 */

/**
 * @param {MapModel} model
 * @param {By} by
 * @param {string[]} ramp color scale with 256 colors, from the background color to the strongest color
 * @returns {Coloring}
 */
export function createColoring(model, by, ramp) {
  const { count, layerCount, parts, textCount } = model;
  if (by === "layer") {
    const labels = Array.from({ length: layerCount }, (_, layer) => `Layer ${layer}`);
    return colorByRamp("Layer", labels, new Int16Array(count), ramp);
  }
  if (by === "word") {
    const ranked = rankLabels(model.nameOf, model.names.length);
    return colorByLabel(model.what === "words" ? "Word" : "Token", model.names, model.nameOf, ranked);
  }
  if (parts.length) return colorByLabel("Part", parts, model.partOf, rankLabels(model.partOf, parts.length));
  const labels = Array.from({ length: textCount }, (_, text) => `Text ${text + 1}`);
  if (textCount > LABEL_COLORS.length)
    return colorByRamp("Text", labels, Int16Array.from(model.textOf), ramp);
  return colorByLabel("Text", labels, model.textOf, [...labels.keys()]);
}

/**
 * @param {string} title
 * @param {string[]} labels
 * @param {ArrayLike<number>} labelOf
 * @param {number[]} ranked the labels with a color, in the order of the colors
 * @returns {Coloring}
 */
function colorByLabel(title, labels, labelOf, ranked) {
  const colored = ranked.slice(0, LABEL_COLORS.length);
  const entryOf = new Map(colored.map((label, entry) => [label, entry]));
  return {
    title,
    entries: colored.map((label, entry) => ({ label: labels[label], color: LABEL_COLORS[entry] })),
    colorOf: Int16Array.from(labelOf, (label) => entryOf.get(label) ?? UNCOLORED),
    hasOthers: colored.length < labels.length,
    isRamp: false,
  };
}

/**
 * @param {string} title
 * @param {string[]} labels
 * @param {Int16Array} colorOf
 * @param {string[]} ramp
 * @returns {Coloring}
 */
function colorByRamp(title, labels, colorOf, ramp) {
  const last = Math.max(labels.length - 1, 1);
  // Skip the colors that are too similar to the background.
  const entries = labels.map((label, i) => ({ label, color: ramp[Math.round(80 + (175 * i) / last)] }));
  return { title, entries, colorOf, hasOthers: false, isRamp: true };
}

/** Returns the labels by descending frequency. @param {ArrayLike<number>} labelOf @param {number} labels */
function rankLabels(labelOf, labels) {
  const times = new Uint32Array(labels);
  for (let i = 0; i < labelOf.length; i++) times[labelOf[i]]++;
  return [...times.keys()].sort((a, b) => times[b] - times[a]);
}

// Search and selection

/**
 * Returns the marks within a closed line, by the even-odd rule.
 *
 * @param {ArrayLike<number>} points x and y of each mark
 * @param {Spot[]} line
 */
export function findEnclosed(points, line) {
  /** @type {number[]} */
  const enclosed = [];
  if (!line.length) return enclosed;
  const bands = new LineBands(line);
  for (let i = 0; 2 * i < points.length; i++) {
    if (bands.encloses(points[2 * i], points[2 * i + 1])) enclosed.push(i);
  }
  return enclosed;
}

const BANDS = 256;

/** A closed line split into horizontal bands, so that each mark is compared only with the edges in its band. */
class LineBands {
  /** @param {Spot[]} line */
  constructor(line) {
    const [xs, ys] = [line.map(({ x }) => x), line.map(({ y }) => y)];
    this.left = Math.min(...xs);
    this.right = Math.max(...xs);
    this.low = Math.min(...ys);
    this.high = Math.max(...ys);
    this.scale = BANDS / (this.high - this.low || 1);
    /** @type {{a: Spot, b: Spot}[][]} */
    this.edges = Array.from({ length: BANDS }, () => []);
    line.forEach((b, i) => {
      const a = line[(i + line.length - 1) % line.length];
      const [first, last] = [this.getBand(Math.min(a.y, b.y)), this.getBand(Math.max(a.y, b.y))];
      for (let band = first; band <= last; band++) this.edges[band].push({ a, b });
    });
  }

  /** @param {number} y */
  getBand(y) {
    return Math.min(Math.floor((y - this.low) * this.scale), BANDS - 1);
  }

  /** @param {number} x @param {number} y */
  encloses(x, y) {
    if (!(x >= this.left && x <= this.right && y >= this.low && y <= this.high)) return false;
    let within = false;
    for (const { a, b } of this.edges[this.getBand(y)]) {
      if (b.y > y !== a.y > y && x < ((a.x - b.x) * (y - b.y)) / (a.y - b.y) + b.x) within = !within;
    }
    return within;
  }
}

/**
 * Returns the mark closest to a spot, or null if none is within reach.
 *
 * @param {ArrayLike<number>} points
 * @param {Spot} spot
 * @param {number} reach
 */
export function findNearest(points, { x, y }, reach) {
  let [index, minDistance] = [-1, reach * reach];
  for (let i = 0; 2 * i < points.length; i++) {
    const distance = (points[2 * i] - x) ** 2 + (points[2 * i + 1] - y) ** 2;
    if (distance <= minDistance) [index, minDistance] = [i, distance];
  }
  return index < 0 ? null : { index: index, distance: Math.sqrt(minDistance) };
}

/**
 * Returns the first mark of the next or previous text.
 *
 * @param {MapModel} model
 * @param {number} index
 * @param {1 | -1} step
 */
export function findNextText({ textOf, count }, index, step) {
  let first = index;
  while (first >= 0 && first < count && textOf[first] === textOf[index]) first += step;
  if (first < 0) return 0;
  if (first >= count) return count - 1;
  while (first > 0 && textOf[first - 1] === textOf[first]) first--;
  return first;
}

// Descriptions in words

const CONTEXT_SIZE = 5; // number of context tokens on each side of a mark

/**
 * Returns a description of a mark, such as "ground · layer 3 · 1.20, −0.41".
 *
 * @param {MapModel} model
 * @param {Point} point
 */
export function describePoint(model, { index, layer }) {
  const points = getPoints(model, layer);
  const [x, y] = [points[2 * index], points[2 * index + 1]].map((coordinate) => formatNumber(coordinate, 2));
  return `${model.names[model.nameOf[index]]} · layer ${layer} · ${x}, ${y}`;
}

/**
 * Returns the words around the token that a point of the map represents.
 *
 * @param {MapModel} model
 * @param {number} index
 */
export function getContext({ textOf, nameOf, names, count }, index) {
  /** @param {number} from @param {number} to */
  const joinNames = (from, to) => {
    const neighbors = [];
    for (let i = Math.max(from, 0); i < Math.min(to, count); i++) {
      if (textOf[i] === textOf[index]) neighbors.push(names[nameOf[i]]);
    }
    return neighbors.join(" ");
  };
  const [first, last] = [index - CONTEXT_SIZE, index + CONTEXT_SIZE];
  const before = joinNames(first, index);
  const after = joinNames(index + 1, last + 1);
  return {
    before: textOf[first - 1] === textOf[index] ? `… ${before}` : before,
    after: textOf[last + 1] === textOf[index] ? `${after} …` : after,
  };
}

/**
 * Returns a description of a mark's origin: the number of its text, the part, and the position.
 *
 * @param {MapModel} model @param {number} index
 */
export function describeOrigin({ textCount, textOf, positionOf, parts, partOf }, index) {
  const origin = [];
  if (textCount > 1) origin.push(`text ${formatCount(textOf[index] + 1)}`);
  if (parts.length) origin.push(parts[partOf[index]]);
  return [...origin, `position ${positionOf[index]}`].join(", ");
}
