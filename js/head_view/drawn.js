// The lines of a head view, the bars for hidden special tokens, and the weights of the active tokens.

import { inView } from "./layout.js";
import { chosenWeights, linesFrom, specialShares } from "./lines.js";
import { seriesColor } from "./paint.js";

/**
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("../core/view.js").Pins} Pins
 */

/**
 * The numbers and options of a picture.
 *
 * @typedef {object} Looks
 * @property {import("./attention.js").Attention} attention
 * @property {import("../core/view.js").Head[]} series
 * @property {import("./lines.js").Permitted} allowed
 * @property {import("../core/view.js").Options} options
 */

/**
 * The lines of the visible queries.
 *
 * @param {HeadPicture} picture
 * @param {Looks} looks
 */
export function drawnOf(picture, { attention, series, allowed, options }) {
  const [first, end] = inView(picture);
  return linesFrom(attention, series, picture.shown.slice(first, end), allowed, options.step);
}

/**
 * The attention of queries on hidden special tokens.
 *
 * @param {HeadPicture} picture
 * @param {Looks} looks
 * @param {number[]} queries
 * @returns {Map<number, number>}
 */
export function barsOf({ model }, { attention, series, allowed, options }, queries) {
  const hidden = !options.specials && model.units.some((unit) => unit.special);
  return hidden ? specialShares(attention, series, queries.filter(allowed.isSource)) : new Map();
}

/**
 * The weights of the active tokens, or null while they are being computed.
 *
 * @param {HeadPicture} picture
 * @param {Looks} looks
 * @param {Pins} looked
 */
export function chosenOf(picture, { attention, series, allowed }, { side, units }) {
  const targets = allowed.shown.filter(side === "query" ? allowed.isTarget : allowed.isSource);
  const weights = chosenWeights(attention, series, side, units, targets);
  const color = series.length === 1 ? seriesColor(picture, series[0]) : picture.theme.accent;
  return weights && { side, units, targets, color, ...weights };
}
