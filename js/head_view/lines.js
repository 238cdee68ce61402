// Selects the lines to draw, and computes the share of attention that these lines represent.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };

/**
 * @typedef {import("./attention.js").Attention} Attention
 * @typedef {import("../core/selection.js").Head} Head
 * @typedef {import("../core/selection.js").Side} Side
 */

/** @typedef {{head: Head, query: number, key: number, weight: number}} Line */

/**
 * The visible units (tokens or words), and the pairs of units that lines may connect.
 *
 * @typedef {object} LineFilter
 * @property {number[]} units
 * @property {(unit: number) => boolean} isSource
 * @property {(unit: number) => boolean} isTarget
 */

/** Thresholds for lines, as a share of the maximum weight. */
export const STEPS = constants.steps;
/** Maximum number of lines, so that browsers draw them quickly. */
export const MAX_LINES = 60_000;

const HALF = 0.5; // share of the drawable attention that the strongest lines represent
const FAINT = 0.002; // share of the maximum weight below which a line is invisible

/**
 * @param {Pick<import("./model.js").HeadModel, "units">} model
 * @param {Pick<import("../core/selection.js").Options, "specials" | "direction">} options
 * @returns {LineFilter}
 */
export function createLineFilter({ units }, { specials, direction }) {
  const [from, to] = direction === "all" ? [null, null] : [...direction].map((side) => Number(side === "B"));
  return {
    units: units.flatMap((unit, i) => (specials || !unit.special ? [i] : [])),
    isSource: (i) => from === null || units[i].segment === from,
    isTarget: (i) => to === null || units[i].segment === to,
  };
}

/**
 * Returns the lines from some queries, and the share of the queries' attention that these lines represent. A threshold
 * of null selects the strongest lines that together represent half of the drawable attention, including ties. If there
 * are more lines than a browser can draw, the weakest ones are omitted and `capped` is true.
 *
 * @param {Attention} attention
 * @param {Head[]} series
 * @param {number[]} queries
 * @param {LineFilter} filter
 * @param {number | null} threshold
 */
export function selectLines(attention, series, queries, filter, threshold) {
  const sources = queries.filter(filter.isSource);
  const targets = filter.units.filter(filter.isTarget);
  const rows = series.flatMap((head) => {
    return sources.map((query) => ({ head, query, row: attention.getRow(head, query) }));
  });
  const { count: drawableCount, sum: visibleSum, half } = findThreshold(rows, targets);
  let minWeight = threshold === null ? half : threshold * attention.model.full;
  let lines = collectLines(rows, targets, minWeight);
  const isCapped = lines.length > MAX_LINES;
  if (isCapped) {
    minWeight = Float32Array.from(lines, (line) => line.weight).sort()[lines.length - MAX_LINES];
    lines = lines.filter((line) => line.weight >= minWeight);
  }
  let total = 0;
  for (const head of series) for (const query of queries) total += sumWeights(attention.getRow(head, query));
  const selectedSum = lines.reduce((sum, line) => sum + line.weight, 0);
  return {
    lines,
    /** Number of drawable lines. */
    drawableCount,
    /** The lines' share of the queries' attention, and of their drawable attention. */
    share: total ? selectedSum / total : 0,
    visibleShare: visibleSum ? selectedSum / visibleSum : 0,
    isAutomatic: threshold === null,
    minWeight,
    isCapped,
    queries,
  };
}

/** @typedef {ReturnType<typeof selectLines>} SelectedLines */
/** @typedef {{head: Head, query: number, row: Float32Array}} Row */

/** @param {Row[]} rows @param {number[]} targets @param {number} minWeight */
function collectLines(rows, targets, minWeight) {
  /** @type {Line[]} */
  const lines = [];
  for (const { head, query, row } of rows) {
    for (const key of targets) {
      if (row[key] > 0 && row[key] >= minWeight) lines.push({ head, query, key, weight: row[key] });
    }
  }
  return lines;
}

/**
 * Returns the number and sum of the drawable weights, and the threshold above which they add up to half of the sum.
 * Positive floats are ordered like their bits. They are counted in buckets by their upper bits, and only one bucket
 * is sorted.
 *
 * @param {Row[]} rows @param {number[]} targets
 */
function findThreshold(rows, targets) {
  const sums = new Float64Array(BUCKETS);
  let count = 0;
  forEachWeight(rows, targets, (weight, bucket) => {
    sums[bucket] += weight;
    count++;
  });
  const sum = sums.reduce((total, part) => total + part, 0);
  let above = 0;
  let bucket = BUCKETS - 1;
  while (bucket > 0 && above + sums[bucket] < HALF * sum) above += sums[bucket--];
  /** @type {number[]} */
  const within = [];
  forEachWeight(rows, targets, (weight, other) => {
    if (other === bucket) within.push(weight);
  });
  within.sort((a, b) => b - a);
  let half = 0;
  for (const weight of within) {
    if (above >= HALF * sum) break;
    half = weight;
    above += weight;
  }
  return { count, sum, half };
}

const BUCKETS = 2 ** 15; // by the upper 16 bits of a positive float32, without the sign

/** @param {Row[]} rows @param {number[]} targets @param {(weight: number, bucket: number) => void} callback */
function forEachWeight(rows, targets, callback) {
  for (const { row } of rows) {
    const bits = new Uint32Array(row.buffer, row.byteOffset, row.length);
    for (const key of targets) if (row[key] > 0) callback(row[key], bits[key] >>> 16);
  }
}

/**
 * Returns the share of each query's attention on special tokens, averaged over the visible heads.
 *
 * @param {Attention} attention
 * @param {Head[]} series
 * @param {number[]} queries
 * @returns {Map<number, number>}
 */
export function computeSpecialShares(attention, series, queries) {
  const { units } = attention.model;
  const specials = units.flatMap((unit, i) => (unit.special ? [i] : []));
  return new Map(
    queries.map((query) => {
      const rows = series.map((head) => attention.getRow(head, query));
      const all = rows.reduce((sum, row) => sum + sumWeights(row), 0);
      const special = rows.reduce((sum, row) => sum + specials.reduce((part, key) => part + row[key], 0), 0);
      return [query, all ? special / all : 0];
    }),
  );
}

/** @param {Float32Array} row */
function sumWeights(row) {
  let sum = 0;
  for (const weight of row) sum += weight;
  return sum;
}

/**
 * Returns the weights between the selected tokens or words on one side and all of them on the other side, summed over
 * the selected ones: `headWeights` for each visible head, their `mean`, and the `lines` to the targets. Returns null
 * until the columns are computed.
 *
 * @param {Attention} attention
 * @param {Head[]} series
 * @param {Side} side
 * @param {number[]} activeUnits
 * @param {number[]} targets
 */
export function sumActiveWeights(attention, series, side, activeUnits, targets) {
  /** @type {Float64Array[]} */
  const headWeights = [];
  /** @type {Line[]} */
  const lines = [];
  for (const head of series) {
    const sum = new Float64Array(attention.count);
    for (const unit of activeUnits) {
      const weights = side === "query" ? attention.getRow(head, unit) : attention.getColumn(head, unit);
      if (!weights) return null;
      weights.forEach((weight, i) => {
        sum[i] += weight;
      });
      for (const target of targets) {
        const weight = weights[target];
        const [query, key] = side === "query" ? [unit, target] : [target, unit];
        if (weight >= FAINT * attention.model.full) lines.push({ head, query, key, weight });
      }
    }
    headWeights.push(sum);
  }
  const mean = headWeights[0].map(
    (_, i) => headWeights.reduce((sum, part) => sum + part[i], 0) / headWeights.length,
  );
  return { headWeights, mean, lines };
}
