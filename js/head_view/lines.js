// Which lines are drawn between the units, and how much of the attention they carry.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };

/**
 * @typedef {import("./attention.js").Attention} Attention
 * @typedef {import("../core/view.js").Head} Head
 * @typedef {import("../core/view.js").Side} Side
 */

/** @typedef {{head: Head, query: number, key: number, weight: number}} Line */

/**
 * Which of the units may be shown, and which pairs of them may be joined.
 *
 * @typedef {object} Permitted
 * @property {number[]} shown
 * @property {(unit: number) => boolean} isSource
 * @property {(unit: number) => boolean} isTarget
 */

/** Thresholds that lines can be drawn from, as a share of the strongest possible. */
export const STEPS = constants.steps;
/** Lines that a browser still draws in a moment. */
export const MOST_LINES = 60_000;

const CLEAR = 1500; // lines that can still be told apart; the automatic threshold keeps to it
const FAINT = 0.002; // share of the full strength below which a line could not be seen

/**
 * @param {Pick<import("./model.js").HeadModel, "units">} model
 * @param {Pick<import("../core/view.js").Options, "specials" | "direction">} options
 * @returns {Permitted}
 */
export function permitted({ units }, { specials, direction }) {
  const [from, to] = direction === "all" ? [null, null] : [...direction].map((side) => Number(side === "B"));
  return {
    shown: units.flatMap((unit, i) => (specials || !unit.special ? [i] : [])),
    isSource: (i) => from === null || units[i].segment === from,
    isTarget: (i) => to === null || units[i].segment === to,
  };
}

/**
 * The lines to draw from some query units, with the share of those queries' attention that they carry, and the
 * threshold used. A threshold of null picks the smallest step that leaves a clear picture. Lines beyond what a browser
 * can draw are left out from the weakest on, which `capped` says.
 *
 * @param {Attention} attention
 * @param {Head[]} series
 * @param {number[]} queries
 * @param {Permitted} allowed
 * @param {number | null} threshold
 */
export function linesFrom(attention, series, queries, allowed, threshold) {
  const sources = queries.filter(allowed.isSource);
  const targets = allowed.shown.filter(allowed.isTarget);
  const rows = series.flatMap((head) => {
    return sources.map((query) => ({ head, query, row: attention.row(head, query) }));
  });
  const { full } = attention.model;
  const step = threshold ?? clearStep(rows, targets, full);
  let least = step * full;
  let lines = linesAbove(rows, targets, least);
  const capped = lines.length > MOST_LINES;
  if (capped) {
    least = Float32Array.from(lines, (line) => line.weight).sort()[lines.length - MOST_LINES];
    lines = lines.filter((line) => line.weight >= least);
  }
  let total = 0;
  for (const head of series) for (const query of queries) total += sumOf(attention.row(head, query));
  const carried = lines.reduce((sum, line) => sum + line.weight, 0);
  return { lines, share: total ? carried / total : 0, step, least, capped, queries };
}

/** @typedef {ReturnType<typeof linesFrom>} Drawn */
/** @typedef {{head: Head, query: number, row: Float32Array}} Row */

/** @param {Row[]} rows @param {number[]} targets @param {number} least */
function linesAbove(rows, targets, least) {
  /** @type {Line[]} */
  const lines = [];
  for (const { head, query, row } of rows) {
    for (const key of targets) {
      if (row[key] > 0 && row[key] >= least) lines.push({ head, query, key, weight: row[key] });
    }
  }
  return lines;
}

/**
 * The smallest step that leaves a clear picture: for each of them, how many lines are at least as strong.
 *
 * @param {Row[]} rows @param {number[]} targets @param {number} full
 */
function clearStep(rows, targets, full) {
  const counts = new Float64Array(STEPS.length);
  const steps = STEPS.map((step) => step * full);
  for (const { row } of rows) {
    for (const key of targets) {
      for (let i = 0; i < steps.length && row[key] >= steps[i]; i++) if (row[key] > 0) counts[i]++;
    }
  }
  return STEPS.find((_, i) => counts[i] <= CLEAR) ?? STEPS[STEPS.length - 1];
}

/** @param {Float32Array} row */
function sumOf(row) {
  let sum = 0;
  for (const weight of row) sum += weight;
  return sum;
}

/**
 * The weights between chosen units of one side and all units of the other, added up over the chosen ones:
 * `parts`, one array for each of the series, their `mean`, and the `lines` to the targets. Null while columns are
 * not ready.
 *
 * @param {Attention} attention
 * @param {Head[]} series
 * @param {Side} side
 * @param {number[]} chosen
 * @param {number[]} targets
 */
export function chosenWeights(attention, series, side, chosen, targets) {
  /** @type {Float64Array[]} */
  const parts = [];
  /** @type {Line[]} */
  const lines = [];
  for (const head of series) {
    const sum = new Float64Array(attention.count);
    for (const unit of chosen) {
      const weights = side === "query" ? attention.row(head, unit) : attention.column(head, unit);
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
    parts.push(sum);
  }
  const mean = parts[0].map((_, i) => parts.reduce((sum, part) => sum + part[i], 0) / parts.length);
  return { parts, mean, lines };
}
