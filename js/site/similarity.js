// Cosine similarity of tokens and of sentences, in float64.

/** @typedef {import("./trace.js").Trace} Trace */

/**
 * Returns the cosine of each token pair from two texts after a layer, without special tokens.
 *
 * @param {Trace} a
 * @param {Trace} b
 * @param {number} layer 0 is the output of the embeddings
 * @returns {{rows: number[], columns: number[], cosines: Float32Array}} token positions of the rows
 *   and columns, and cosines [row, column]
 */
export function compareTokens(a, b, layer) {
  const [rows, columns] = [a, b].map(({ tokens }) =>
    tokens.flatMap(({ special }, position) => (special ? [] : [position])),
  );
  const cosines = new Float32Array(rows.length * columns.length);
  rows.forEach((row, i) => {
    columns.forEach((column, j) => {
      cosines[i * columns.length + j] = computeCosine(a.vector(layer, row), b.vector(layer, column));
    });
  });
  return { rows, columns, cosines };
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
export function computeCosine(a, b) {
  const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  return Math.min(Math.max(cosine, -1), 1);
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** Returns the mean of the token vectors of the last layer, including [CLS] and [SEP]. @param {Trace} trace */
export function poolTokens(trace) {
  const mean = new Float64Array(trace.hiddenSize);
  const count = trace.tokens.length;
  for (let token = 0; token < count; token++) {
    trace.vector(trace.layers, token).forEach((value, i) => {
      mean[i] += value / count;
    });
  }
  return mean;
}

/**
 * Returns the cosine of two sentence vectors, and the contribution of each pair of tokens, which add up to the
 * cosine.
 *
 * A sentence vector is a mean of token vectors, so the cosine is Σ_ij a_i · b_j / (m n |A| |B|).
 *
 * @param {Trace} a
 * @param {Trace} b
 * @returns {{cosine: number, contributions: Float64Array}} `contributions`: [token of a, token of b]
 */
export function compareSentences(a, b) {
  const [first, second] = [poolTokens(a), poolTokens(b)];
  const [m, n] = [a.tokens.length, b.tokens.length];
  const scale = m * n * Math.sqrt(dot(first, first) * dot(second, second));
  const contributions = new Float64Array(m * n);
  for (let i = 0; i < m; i++) {
    for (let j = 0; j < n; j++) {
      contributions[i * n + j] = dot(a.vector(a.layers, i), b.vector(b.layers, j)) / scale;
    }
  }
  return { cosine: computeCosine(first, second), contributions };
}

/**
 * Returns the percentage of scores that are lower than a score, 0 to 100.
 *
 * @param {number} score
 * @param {Float32Array} sorted
 */
export function getPercentile(score, sorted) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < score) low = middle + 1;
    else high = middle;
  }
  return (100 * low) / sorted.length;
}
