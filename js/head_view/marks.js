// The lines of a head view, the bars for hidden special tokens, and the weights of the active tokens.

import { getVisibleRange } from "./layout.js";
import { computeSpecialShares, selectLines, sumActiveWeights } from "./lines.js";
import { getSeriesColor } from "./paint.js";

/**
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("../core/selection.js").Pins} Pins
 */

/**
 * The data and options from which lines, bars and weights are computed.
 *
 * @typedef {object} MarkInputs
 * @property {import("./attention.js").Attention} attention
 * @property {import("../core/selection.js").Head[]} series
 * @property {import("./lines.js").LineFilter} filter
 * @property {import("../core/selection.js").Options} options
 */

/**
 * Returns the lines of the visible queries.
 *
 * @param {HeadPicture} picture
 * @param {MarkInputs} inputs
 */
export function selectVisibleLines(picture, { attention, series, filter, options }) {
  const [first, end] = getVisibleRange(picture);
  return selectLines(attention, series, picture.units.slice(first, end), filter, options.step);
}

/**
 * Returns the share of each query's attention on hidden special tokens; empty if no special token is hidden.
 *
 * @param {HeadPicture} picture
 * @param {MarkInputs} inputs
 * @param {number[]} queries
 * @returns {Map<number, number>}
 */
export function computeBars({ model }, { attention, series, filter, options }, queries) {
  const hidden = !options.specials && model.units.some((unit) => unit.special);
  return hidden ? computeSpecialShares(attention, series, queries.filter(filter.isSource)) : new Map();
}

/**
 * Returns the attention weights between the active tokens or words and those on the other side; null until computed.
 *
 * @param {HeadPicture} picture
 * @param {MarkInputs} inputs
 * @param {Pins} looked
 */
export function computeActiveWeights(picture, { attention, series, filter }, { side, units }) {
  const targets = filter.units.filter(side === "query" ? filter.isTarget : filter.isSource);
  const weights = sumActiveWeights(attention, series, side, units, targets);
  const color = series.length === 1 ? getSeriesColor(picture, series[0]) : picture.theme.accent;
  return weights && { side, units, targets, color, ...weights };
}
