// Creates the payloads of the views from a forward pass in the browser.
// The format is that of `views/head_view.py`, `views/model_view.py` and `views/matrix.py`.

import { packPayload } from "../core/payload.js";
import { createColorIndexer } from "../core/scale.js";
import { MEAN } from "../core/selection.js";
import { labelHeads, MEASURE_NAMES, measureHeads } from "./heads.js";

/** @typedef {import("./trace.js").Trace} Trace */ /** @typedef {import("./heads.js").Measures} Measures */
/** @typedef {import("../core/scale.js").Scale} Scale */
/** @typedef {import("../core/selection.js").VersionedSelection} VersionedSelection */
/**
 * The color tables of a scale, each with 256 RGB colors.
 *
 * @typedef {{light: Uint8Array, dark: Uint8Array}} Tables */ /** @typedef {Record<Scale["kind"], Tables>} Palette
 */

/** Maximum length of a label, in characters. */
const MAX_CHARACTERS = 100;
/** Maximum number of cells per side of a thumbnail. */
const MAX_CELLS = 96;
/** @type {Scale} */
const SHARES = { kind: "sequential", low: 0, high: 1, curve: "sqrt" };
/** @type {Scale} */
const COSINES = { kind: "diverging", low: -1, high: 1, curve: "linear" };

/** @param {string} text */
function shorten(text) {
  const characters = Array.from(text);
  if (characters.length <= MAX_CHARACTERS) return text;
  const count = characters.length.toLocaleString("en-US");
  return `${characters.slice(0, MAX_CHARACTERS).join("")}… (${count} characters)`;
}

/** Returns the caption for saved files. @param {string} model @param {Trace} trace */
function createCaption(model, { text, pair }) {
  const quoted = pair === null ? `“${text}”` : `“${text}” + “${pair}”`;
  return `${model} · ${quoted.length <= 300 ? quoted : `${quoted.slice(0, 299)}…`}`;
}

/**
 * Returns a string that identifies the tokens of a text, because pinned tokens are valid only for this text.
 *
 * @param {Trace} trace
 */
export function identify(trace) {
  return trace.tokens.map(({ id, start }) => `${id} ${start}`).join();
}

/**
 * Returns the initial selection of a head view.
 *
 * @param {Trace} trace
 * @param {number} layer from 1
 * @param {import("../core/selection.js").Head[]} heads
 * @returns {VersionedSelection}
 */
export function createSelection(trace, layer = trace.layers, heads = [MEAN]) {
  return {
    revision: 0,
    of: identify(trace),
    value: {
      layer,
      heads,
      measure: "weights",
      words: false,
      residual: 0.5,
      options: {
        layout: "columns",
        direction: "all",
        specials: true,
        fit: false,
        step: null,
        renormalize: false,
        root: true,
      },
      pins: { side: "query", units: [] },
    },
  };
}

/**
 * Returns the payload of a layer for the head view, with queries and keys.
 *
 * @param {Trace} trace
 * @param {number} layer from 1
 * @param {object} options
 * @param {string} options.model
 * @param {Measures} options.measures
 * @param {VersionedSelection} options.selection
 * @param {{layer: number, head: number, text: string} | null} options.reason
 */
export function packHeads(trace, layer, { model, measures, selection, reason }) {
  const { tokens, words } = trace;
  const isPair = trace.pair !== null;
  const tokenUnits = tokens.map(({ text, segment, special }, first) => ({
    text,
    first,
    count: 1,
    segment,
    special,
  }));
  const [units, other] = selection.value.words ? [words, tokenUnits] : [tokenUnits, words];
  const description = {
    key: "playground-heads",
    selection,
    offer: {
      layers: trace.layers,
      heads: trace.heads,
      several: true,
      rolled: false,
      specials: true,
      pair: isPair,
      measures: [],
      words: words.length < tokens.length,
      more: ["several", "layout", ...(isPair ? ["direction"] : []), "fit", "lines"],
      residuals: [],
      shares: true,
    },
    source: "",
    reason,
    layer,
    layers: trace.layers,
    layerNumbers: null,
    heads: Array.from({ length: trace.heads }, (_, head) => head),
    rolled: false,
    tokenCount: tokens.length,
    words: selection.value.words,
    texts: units.map(({ text }) => shorten(text)),
    other: { texts: other.map(({ text }) => shorten(text)), full: 1 },
    scaling: trace.scaling,
    full: 1,
    labels: labelHeads(measures),
    title: "Attention",
    valueName: "attention weight",
    total: "attention",
    caption: createCaption(model, trace),
    fileName: `head-view-layer${layer}`,
  };
  const shape = [trace.heads, tokens.length, trace.size];
  const arrays = {
    ...packUnits(units, ""),
    ...packUnits(other, "other."),
    queries: trace.part("queries", layer - 1),
    keys: trace.part("keys", layer - 1),
  };
  return packPayload(description, arrays, { queries: shape, keys: shape });
}

/** @param {import("./trace.js").Unit[]} units @param {string} prefix */
function packUnits(units, prefix) {
  return {
    [`${prefix}firsts`]: Uint16Array.from(units, ({ first }) => first),
    [`${prefix}segments`]: Uint8Array.from(units, ({ segment }) => segment),
    [`${prefix}specials`]: Uint8Array.from(units, ({ special }) => Number(special)),
  };
}

/**
 * Returns the payload of the model view.
 *
 * @param {Trace} trace
 * @param {string} model
 * @param {Palette} palette
 */
export function packThumbnails(trace, model, palette, measures = measureHeads(trace)) {
  const { layers, heads } = trace;
  const count = trace.tokens.length;
  const block = Math.ceil(count / MAX_CELLS);
  const side = Math.ceil(count / block);
  const labels = labelHeads(measures).flat();
  const names = [...new Set(labels)];
  const entries = new Uint8Array(layers * heads * side * side);
  const colorOf = createColorIndexer(SHARES);
  for (let index = 0; index < layers * heads; index++) {
    const map = trace.attention(Math.floor(index / heads), index % heads);
    const largest = findLargest(map, count, block, side);
    largest.forEach((weight, i) => {
      entries[index * side * side + i] = colorOf(weight);
    });
  }
  const keys = /** @type {(keyof Measures)[]} */ (Object.keys(MEASURE_NAMES));
  const description = {
    key: "playground-model",
    layerCount: layers,
    headCount: heads,
    side,
    block,
    unit: "tokens",
    unitCount: count,
    labels: names,
    marked: true,
    axes: "query ↓ · key →",
    measures: Object.values(MEASURE_NAMES),
    caption: "Attention of all heads",
    source: createCaption(model, trace),
    valueName: "attention weight",
    fileName: "model-view",
    scale: SHARES,
    selected: [],
    above: false,
  };
  const arrays = {
    ...palette.sequential,
    labeled: Uint16Array.from(labels, (label) => names.indexOf(label)),
    entries,
    numbers: Float64Array.from(keys.flatMap((name) => measures[name].flat())),
  };
  const shapes = {
    light: [256, 3],
    dark: [256, 3],
    labeled: [layers, heads],
    entries: [layers, heads, side, side],
    numbers: [keys.length, layers, heads],
  };
  return packPayload(description, arrays, shapes);
}

/**
 * Returns the largest weight in each block of queries and keys, [query block, key block].
 *
 * @param {Float32Array} map
 * @param {number} count
 * @param {number} block
 * @param {number} side
 */
function findLargest(map, count, block, side) {
  if (block === 1) return map;
  const largest = new Float32Array(side * side);
  for (let query = 0; query < count; query++) {
    for (let key = 0; key < count; key++) {
      const cell = Math.floor(query / block) * side + Math.floor(key / block);
      largest[cell] = Math.max(largest[cell], map[query * count + key]);
    }
  }
  return largest;
}

/**
 * Returns the payload of a heatmap with a value for each token pair.
 *
 * @param {object} pairs
 * @param {[Trace, Trace]} pairs.traces
 * @param {[number[], number[]]} pairs.positions token positions of the rows and of the columns
 * @param {Float32Array} pairs.values [row, column]
 * @param {Scale} pairs.scale
 * @param {string} pairs.valueName
 * @param {string} pairs.caption
 * @param {string} pairs.fileName
 * @param {Palette} palette
 */
function packPairs({ traces, positions, values, scale, valueName, caption, fileName }, palette) {
  const [rows, columns] = traces.map(({ tokens }, i) =>
    positions[i].map((place) => shorten(tokens[place].text)),
  );
  const description = {
    key: `playground-${fileName}`,
    labels: JSON.stringify([rows, columns]),
    rows,
    columns,
    rowPositions: positions[0],
    columnPositions: positions[1],
    rowRuler: false,
    columnRuler: false,
    rowAxis: "A",
    columnAxis: "B",
    valueName,
    caption,
    decimals: 4,
    square: true,
    whole: false,
    marked: [],
    fileName,
    scale,
    pinned: null,
    revision: 0,
    min: values.reduce((least, value) => Math.min(least, value), Number.POSITIVE_INFINITY),
    max: values.reduce((largest, value) => Math.max(largest, value), Number.NEGATIVE_INFINITY),
    below: false,
    above: false,
    missing: false,
  };
  const shapes = { values: [rows.length, columns.length], light: [256, 3], dark: [256, 3] };
  return packPayload(description, { ...palette[scale.kind], values }, shapes);
}

/**
 * Returns the payload of a heatmap with the cosines of token pairs.
 *
 * @param {[Trace, Trace]} traces
 * @param {ReturnType<typeof import("./similarity.js").compareTokens>} compared
 * @param {number} layer 0 is the output of the embeddings
 * @param {Palette} palette
 */
export function packCosines(traces, { rows, columns, cosines }, layer, palette) {
  const place = layer === 0 ? "the output of the embeddings" : `layer ${layer}`;
  const pairs = {
    traces,
    positions: /** @type {[number[], number[]]} */ ([rows, columns]),
    values: cosines,
    scale: COSINES,
    valueName: "cosine",
    caption: `Cosine similarity of token vectors after ${place}`,
    fileName: "similarity",
  };
  return packPairs(pairs, palette);
}

/**
 * Returns the payload of a heatmap with the contributions of token pairs to the cosine of two sentences.
 *
 * @param {[Trace, Trace]} traces
 * @param {Float64Array} contributions [token of a, token of b]
 * @param {Palette} palette
 */
export function packContributions(traces, contributions, palette) {
  const values = Float32Array.from(contributions, (value) => 100 * value);
  const pairs = {
    traces,
    positions: /** @type {[number[], number[]]} */ (traces.map(({ tokens }) => tokens.map((_, i) => i))),
    values,
    scale: aroundZero(values),
    valueName: "hundredths",
    caption: "Contribution of each pair of tokens to the cosine, in hundredths",
    fileName: "contributions",
  };
  return packPairs(pairs, palette);
}

/** Returns a diverging scale that ends at the largest absolute value. @param {Float32Array} values @returns {Scale} */
function aroundZero(values) {
  const largest = values.reduce((end, value) => Math.max(end, Math.abs(value)), 0) || 1;
  const digit = 10 ** (Math.floor(Math.log10(largest)) - 1);
  const end = Number((Math.ceil(largest / digit) * digit).toPrecision(12));
  return { kind: "diverging", low: -end, high: end, curve: "linear" };
}
