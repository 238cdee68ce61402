// Computes the attention of a layer between tokens or words from queries and keys, row by row when it is needed.

import { MEAN } from "../core/selection.js";

/**
 * @typedef {import("../core/selection.js").Head} Head
 * @typedef {import("./model.js").Unit} Unit
 */

const MAX_CACHED_WEIGHTS = 16e6; // maximum number of cached weights, to bound the memory for a long text

/**
 * The data from which attention is computed.
 *
 * @typedef {Pick<import("./model.js").HeadModel, "heads" | "units" | "tokenCount" | "scaling" | "full" | "weights" |
 *   "vectors">} Numbers
 */

/** The attention weights of a layer between tokens or words: a row for each query, and a column for each key. */
export class Attention {
  /** @param {Numbers} model */
  constructor(model) {
    this.model = model;
    this.count = model.units.length;
    /**
     * Number of rows and columns of the received weights: the number of tokens or, if the weights are between words,
     * the number of words.
     */
    this.size = Math.sqrt((model.weights?.length ?? 0) / model.heads.length);
    /** @type {Map<string, Float32Array>} */
    this.rows = new Map();
    /** Log-sum-exp of each row, [head][query token]; NaN until computed. */
    this.logSums = model.heads.map(() => new Float64Array(model.tokenCount).fill(Number.NaN));
    this.scores = new Float64Array(model.tokenCount);
  }

  /**
   * Returns the weights of a query for all keys (tokens or words), for one head or as the mean over all heads.
   *
   * @param {Head} head @param {number} query
   */
  getRow(head, query) {
    const { weights } = this.model;
    if (weights && this.size === this.count && head !== MEAN) return this.readRow(weights, head, query);
    const id = `${head}/${query}`;
    let row = this.rows.get(id);
    if (row) return row;
    row = head === MEAN ? this.computeMeanRow(query) : this.computeMergedRow(head, query);
    if (this.rows.size * this.count > MAX_CACHED_WEIGHTS) this.rows.clear();
    this.rows.set(id, row);
    return row;
  }

  /** @param {number} query */
  computeMeanRow(query) {
    const mean = new Float64Array(this.count);
    const { heads } = this.model;
    heads.forEach((_, head) => {
      this.getRow(head, query).forEach((weight, key) => {
        mean[key] += weight;
      });
    });
    return Float32Array.from(mean, (sum) => sum / heads.length);
  }

  /**
   * Returns the row of a word: weights are summed over the tokens of a key and averaged over the tokens of a query.
   *
   * @param {number} head @param {number} query
   */
  computeMergedRow(head, query) {
    const { units, tokenCount, weights: received, vectors } = this.model;
    const lengths = vectors?.lengths;
    const { first, pieces } = units[query];
    const row = new Float64Array(this.count);
    for (let token = first; token < first + pieces; token++) {
      const weights = received ? this.readRow(received, head, token) : this.computeTokenRow(head, token);
      units.forEach((unit, key) => {
        for (let i = unit.first; i < unit.first + unit.pieces; i++) {
          row[key] += lengths ? weights[i] * lengths[head * tokenCount + i] : weights[i];
        }
      });
    }
    return Float32Array.from(row, (sum) => sum / pieces);
  }

  /** @param {Float32Array} weights @param {number} head @param {number} query */
  readRow(weights, head, query) {
    const start = (head * this.size + query) * this.size;
    return weights.subarray(start, start + this.size);
  }

  get vectors() {
    const { vectors } = this.model;
    if (!vectors) throw new Error("These weights were received, and cannot be computed.");
    return vectors;
  }

  /**
   * Returns the softmax of a token's scores. The next call overwrites the returned array.
   *
   * @param {number} head @param {number} query
   */
  computeTokenRow(head, query) {
    const { tokenCount, scaling } = this.model;
    const { queries, keys, dim, mask } = this.vectors;
    const scores = this.scores;
    const q = (head * tokenCount + query) * dim;
    // `computeScore` is inlined here, because this loop takes most of the time.
    for (let key = 0, k = head * tokenCount * dim; key < tokenCount; key++, k += dim) {
      let sum = 0;
      for (let i = 0; i < dim; i++) sum += queries[q + i] * keys[k + i];
      scores[key] = mask && this.isMasked(query, key) ? Number.NEGATIVE_INFINITY : sum * scaling;
    }
    const logSum = logSumExp(scores);
    this.logSums[head][query] = logSum;
    for (let key = 0; key < tokenCount; key++) scores[key] = Math.exp(scores[key] - logSum);
    return scores;
  }

  /** @param {number} head @param {number} query @param {number} key */
  computeScore(head, query, key) {
    const { tokenCount, scaling } = this.model;
    const { queries, keys, dim } = this.vectors;
    if (this.isMasked(query, key)) return Number.NEGATIVE_INFINITY;
    const [q, k] = [(head * tokenCount + query) * dim, (head * tokenCount + key) * dim];
    let sum = 0;
    for (let i = 0; i < dim; i++) sum += queries[q + i] * keys[k + i];
    return sum * scaling;
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    const { mask, maskRows } = this.vectors;
    if (!mask) return false;
    const row = maskRows === 1 ? 0 : query;
    const byte = mask[row * Math.ceil(this.model.tokenCount / 8) + (key >> 3)];
    return ((byte >> (7 - (key & 7))) & 1) === 0;
  }

  /**
   * Returns the weights of all queries for a key (a token or word); null until `prepareColumns` has computed all rows.
   *
   * @param {Head} head @param {number} key @returns {Float32Array | null}
   */
  getColumn(head, key) {
    const heads = head === MEAN ? this.model.heads.map((_, i) => i) : [head];
    /** @type {Float64Array[]} */
    const parts = [];
    for (const index of heads) {
      const part = this.computeColumn(index, key);
      if (!part) return null;
      parts.push(part);
    }
    return Float32Array.from(parts[0], (_, query) => {
      return parts.reduce((sum, part) => sum + part[query], 0) / parts.length;
    });
  }

  /** @param {number} head @param {number} key @returns {Float64Array | null} */
  computeColumn(head, key) {
    const { units, tokenCount, vectors } = this.model;
    if (!vectors) return Float64Array.from(units, (_, query) => this.getRow(head, query)[key]);
    if (!this.isPrepared(head)) return null;
    const { lengths } = vectors;
    const target = units[key];
    return Float64Array.from(units, (unit) => {
      let sum = 0;
      for (let query = unit.first; query < unit.first + unit.pieces; query++) {
        for (let i = target.first; i < target.first + target.pieces; i++) {
          const weight = Math.exp(this.computeScore(head, query, i) - this.logSums[head][query]);
          sum += lengths ? weight * lengths[head * tokenCount + i] : weight;
        }
      }
      return sum / unit.pieces;
    });
  }

  /** @param {number} head */
  isPrepared(head) {
    return !this.model.vectors || !this.logSums[head].some(Number.isNaN);
  }

  /**
   * Computes missing log-sum-exps of rows for a limited time. Returns whether all of them are computed.
   *
   * @param {number[]} heads @param {number} milliseconds
   */
  prepareColumns(heads, milliseconds) {
    if (!this.model.vectors) return true;
    const end = performance.now() + milliseconds;
    for (const head of heads) {
      for (let query = 0; query < this.model.tokenCount; query++) {
        if (!Number.isNaN(this.logSums[head][query])) continue;
        this.computeTokenRow(head, query);
        if (performance.now() > end) return false;
      }
    }
    return true;
  }
}

/** @param {Float64Array} scores */
function logSumExp(scores) {
  let maximum = Number.NEGATIVE_INFINITY;
  for (const score of scores) if (score > maximum) maximum = score;
  let sum = 0;
  for (const score of scores) sum += Math.exp(score - maximum);
  return maximum + Math.log(sum);
}
