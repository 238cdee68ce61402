// The result of a forward pass in the browser: tokens, hidden states, queries, keys and values of every layer.

/** @typedef {import("./tokenizer.js").Token} Token */

/**
 * A word or a special token, and its tokens.
 *
 * @typedef {{text: string, first: number, count: number, segment: number, special: boolean}} Unit
 */

/**
 * The arrays of a forward pass, as the model's outputs.
 *
 * @typedef {object} Arrays
 * @property {Float32Array} hidden [layer + 1, token, hidden]
 * @property {Float32Array} queries [layer, head, token, size]
 * @property {Float32Array} keys
 * @property {Float32Array} values
 */

/** @typedef {{layers: number, heads: number, size: number}} Shape `size`: dimensions of a head */

export class Trace {
  /**
   * @param {string} text
   * @param {Token[]} tokens
   * @param {Arrays} arrays
   * @param {Shape} shape
   * @param {string | null} pair the second text of a pair
   */
  constructor(text, tokens, arrays, { layers, heads, size }, pair = null) {
    this.text = text;
    this.pair = pair;
    this.tokens = tokens;
    this.arrays = arrays;
    this.layers = layers;
    this.heads = heads;
    this.size = size;
    /** @type {Map<number, Float32Array>} */
    this.maps = new Map();
  }

  get hiddenSize() {
    return this.heads * this.size;
  }

  get scaling() {
    return this.size ** -0.5;
  }

  /**
   * Returns the queries, keys or values of a layer, [head, token, size].
   *
   * @param {"queries" | "keys" | "values"} name @param {number} layer
   */
  part(name, layer) {
    const length = this.heads * this.tokens.length * this.size;
    return this.arrays[name].subarray(layer * length, (layer + 1) * length);
  }

  /**
   * Returns the hidden states after a layer, [token, hidden]. Layer 0 is the output of the embeddings.
   *
   * @param {number} layer
   */
  vectors(layer) {
    const length = this.tokens.length * this.hiddenSize;
    return this.arrays.hidden.subarray(layer * length, (layer + 1) * length);
  }

  /** Returns the hidden state of a token. @param {number} layer @param {number} token */
  vector(layer, token) {
    return this.vectors(layer).subarray(token * this.hiddenSize, (token + 1) * this.hiddenSize);
  }

  /** Returns the attention weights of a head, [query, key]. @param {number} layer @param {number} head */
  attention(layer, head) {
    const index = layer * this.heads + head;
    let map = this.maps.get(index);
    if (!map) {
      map = this.computeAttention(layer, head);
      this.maps.set(index, map);
    }
    return map;
  }

  /** @param {number} layer @param {number} head */
  computeAttention(layer, head) {
    const { size, scaling } = this;
    const length = this.tokens.length;
    const [queries, keys] = [this.part("queries", layer), this.part("keys", layer)];
    const start = head * length * size;
    const map = new Float32Array(length * length);
    const scores = new Float64Array(length);
    for (let query = 0; query < length; query++) {
      let largest = Number.NEGATIVE_INFINITY;
      for (let key = 0; key < length; key++) {
        let sum = 0;
        for (let i = 0; i < size; i++)
          sum += queries[start + query * size + i] * keys[start + key * size + i];
        scores[key] = sum * scaling;
        if (scores[key] > largest) largest = scores[key];
      }
      let total = 0;
      for (let key = 0; key < length; key++) {
        scores[key] = Math.exp(scores[key] - largest);
        total += scores[key];
      }
      for (let key = 0; key < length; key++) map[query * length + key] = scores[key] / total;
    }
    return map;
  }

  /** The words and special tokens. Words are spelled as in the text. @returns {Unit[]} */
  get words() {
    /** @type {Unit[]} */
    const units = [];
    this.tokens.forEach(({ text, word, start, end, segment, special }, i) => {
      const source = (segment ? this.pair : this.text) ?? "";
      const last = units[units.length - 1];
      if (last && word !== null && word === this.tokens[i - 1].word) {
        last.count++;
        last.text = source.slice(this.tokens[last.first].start, end).trim() || last.text;
      } else {
        units.push({
          text: special ? text : source.slice(start, end).trim() || text,
          first: i,
          count: 1,
          segment,
          special,
        });
      }
    });
    return units;
  }
}
