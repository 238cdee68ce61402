// Computes measures and labels of attention heads, as `analyses/attention/heads.py` does.

/** @typedef {import("./trace.js").Trace} Trace */

/** Minimum share of attention on a target for a head to have the target's label. */
const LABEL_SHARE = 0.5;
/** Minimum normalized entropy of a head labeled "broad". */
const BROAD_ENTROPY = 0.85;
/** Number of queries, from the beginning of the text, on which the selection of the initial head is based. */
const MAX_QUERIES = 64;

/** The shares of attention on targets. A head gets the label of its largest share, or of the first one in a tie. */
const SHARES = {
  self: { label: "same token", target: "the token itself" },
  previous: { label: "previous token", target: "the previous token" },
  next: { label: "next token", target: "the next token" },
  first: { label: "first token sink", target: "the first token" },
  separator: { label: "separator sink", target: "separators" },
  punctuation: { label: "punctuation", target: "punctuation" },
  other_segment: { label: "other segment", target: "the other segment" },
  same_word: { label: "same word", target: "the rest of the same word" },
  same_token: { label: "repeated token", target: "other occurrences of the same token" },
};

/** @typedef {keyof typeof SHARES} Share */
/** @typedef {Share | "entropy_bits" | "relative_entropy" | "mean_distance" | "difference_from_mean"} Measure */
/** Measures of all heads, each of shape [layer][head]. @typedef {Record<Measure, number[][]>} Measures */

const NAMES = /** @type {Share[]} */ (Object.keys(SHARES));
/** Names of the shares by which the initial head can be selected. */
const SPECIALIZED = /** @type {Share[]} */ (NAMES.filter((name) => name !== "first" && name !== "separator"));

/** Names of the measures, in the order in which the model view lists them. @type {Record<Measure, string>} */
export const MEASURE_NAMES = {
  previous: "previous token",
  next: "next token",
  self: "same token",
  mean_distance: "distance",
  first: "first token",
  separator: "separator",
  same_word: "same word",
  same_token: "repeated token",
  punctuation: "punctuation",
  other_segment: "other segment",
  entropy_bits: "entropy",
  relative_entropy: "normalized entropy",
  difference_from_mean: "difference from layer mean",
};

/**
 * Returns the measures of every head, averaged over the first `queries` tokens.
 *
 * @param {Trace} trace
 * @returns {Measures}
 */
export function measureHeads(trace, queries = trace.tokens.length) {
  const count = Math.min(queries, trace.tokens.length);
  const groups = createGroups(trace.tokens);
  const layers = Array.from({ length: trace.layers }, (_, layer) =>
    measureLayer(trace, layer, count, groups),
  );
  const names = /** @type {Measure[]} */ (Object.keys(MEASURE_NAMES));
  return /** @type {Measures} */ (
    Object.fromEntries(names.map((name) => [name, layers.map((heads) => heads.map((head) => head[name]))]))
  );
}

/** @typedef {ReturnType<typeof createGroups>} Groups */

/** @param {import("./tokenizer.js").Token[]} tokens */
function createGroups(tokens) {
  // Count each special token as a separate word.
  return {
    words: tokens.map(({ word, segment }, i) => (word === null ? `special ${i}` : `${segment} ${word}`)),
    segments: tokens.map(({ segment }) => segment),
    texts: tokens.map(({ text }) => text),
    separators: tokens.map(({ special }, i) => special && i > 0),
    signs: tokens.map(({ text, special }) => !special && isPunctuation(text)),
  };
}

/** Returns whether a token is punctuation: ASCII symbols and the Unicode category P. @param {string} token */
function isPunctuation(token) {
  return /^(?:[!-/:-@[-`{-~]|\p{P})+$/u.test(token.replace(/^##/, "").replace(/^[▁Ġ ]+|[▁Ġ ]+$/g, ""));
}

/**
 * @param {Trace} trace
 * @param {number} layer
 * @param {number} count number of queries
 * @param {Groups} groups
 * @returns {Record<Measure, number>[]}
 */
function measureLayer(trace, layer, count, groups) {
  const length = trace.tokens.length;
  const maps = Array.from({ length: trace.heads }, (_, head) => trace.attention(layer, head));
  const mean = new Float64Array(count * length);
  for (const map of maps) for (let i = 0; i < mean.length; i++) mean[i] += map[i] / maps.length;
  return maps.map((map) => measureMap(map, mean, count, length, groups));
}

/**
 * @param {Float32Array} map attention weights, [query, key]
 * @param {Float64Array} mean mean attention weights over the heads of the layer, [query, key]
 * @param {number} count number of queries
 * @param {number} length number of keys
 * @param {Groups} groups
 * @returns {Record<Measure, number>}
 */
function measureMap(map, mean, count, length, { words, segments, texts, separators, signs }) {
  const names = /** @type {Measure[]} */ (Object.keys(MEASURE_NAMES));
  const sums = /** @type {Record<Measure, number>} */ (Object.fromEntries(names.map((name) => [name, 0])));
  for (let query = 0; query < count; query++) {
    for (let key = 0; key < length; key++) {
      const weight = map[query * length + key];
      if (key === query) sums.self += weight;
      else {
        if (key === query - 1) sums.previous += weight;
        if (key === query + 1) sums.next += weight;
        if (words[key] === words[query]) sums.same_word += weight;
        if (texts[key] === texts[query]) sums.same_token += weight;
      }
      if (segments[key] !== segments[query]) sums.other_segment += weight;
      if (key === 0) sums.first += weight;
      if (separators[key]) sums.separator += weight;
      if (signs[key]) sums.punctuation += weight;
      sums.mean_distance += weight * Math.abs(query - key);
      if (weight > 0) sums.entropy_bits -= weight * Math.log2(weight);
      sums.difference_from_mean += Math.abs(weight - mean[query * length + key]) / 2;
    }
  }
  for (const name of names) sums[name] /= count;
  sums.relative_entropy = sums.entropy_bits / (Math.log2(length) || 1);
  return sums;
}

/** Returns the label of each head, [layer][head]; "" for a head without a label. @param {Measures} measures */
export function labelHeads(measures) {
  return measures.self.map((row, layer) => row.map((_, head) => labelHead(measures, layer, head)));
}

/** @param {Measures} measures @param {number} layer @param {number} head */
function labelHead(measures, layer, head) {
  const largest = findLargestShare(measures, layer, head);
  if (measures[largest][layer][head] >= LABEL_SHARE) return SHARES[largest].label;
  return measures.relative_entropy[layer][head] >= BROAD_ENTROPY ? "broad" : "";
}

/** @param {Measures} measures @param {number} layer @param {number} head */
function findLargestShare(measures, layer, head) {
  return NAMES.reduce((best, name) =>
    measures[name][layer][head] > measures[best][layer][head] ? name : best,
  );
}

/**
 * Returns the head that stands out most on a text: the head whose largest share exceeds the mean of the same share
 * over all heads by the most. Returns null if no such share is at least `LABEL_SHARE`.
 *
 * @param {Trace} trace
 * @returns {{layer: number, head: number, text: string} | null} `layer` from 1
 */
export function findFirstHead(trace) {
  const measures = measureHeads(trace, MAX_QUERIES);
  const queries = Math.min(MAX_QUERIES, trace.tokens.length);
  const partly = queries < trace.tokens.length ? ` (mean over the first ${queries} tokens)` : "";
  let best = null;
  let largestExcess = 0;
  for (let layer = 0; layer < trace.layers; layer++) {
    for (let head = 0; head < trace.heads; head++) {
      const name = findLargestShare(measures, layer, head);
      const share = measures[name][layer][head];
      const values = measures[name].flat();
      const excess = share - values.reduce((sum, value) => sum + value, 0) / values.length;
      if (!SPECIALIZED.includes(name) || share < LABEL_SHARE || excess <= largestExcess) continue;
      largestExcess = excess;
      const text = `puts ${(100 * share).toFixed(0)}% of its attention on ${SHARES[name].target}${partly}`;
      best = { layer: layer + 1, head, text };
    }
  }
  return best;
}
