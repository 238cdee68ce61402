// What is drawn of a text: its lines, the bars beside them, and the row of what is looked at.

import { inView } from "./layout.js";
import { chosenWeights, linesFrom, specialShares } from "./lines.js";
import { seriesColour } from "./paint.js";

/**
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("../core/view.js").Pins} Pins
 */

/**
 * What is shown in a picture, and of which numbers.
 *
 * @typedef {object} Looks
 * @property {import("./attention.js").Attention} attention
 * @property {import("../core/view.js").Head[]} series
 * @property {import("./lines.js").Permitted} allowed
 * @property {import("../core/view.js").Options} options
 */

/**
 * What is drawn of the queries that a picture shows.
 *
 * @param {HeadPicture} picture
 * @param {Looks} looks
 */
export function drawnOf(picture, { attention, series, allowed, options }) {
  const [first, end] = inView(picture);
  return linesFrom(attention, series, picture.shown.slice(first, end), allowed, options.step);
}

/**
 * What queries give to special tokens, where those are hidden.
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
 * The row of what is looked at; null while it is still added up.
 *
 * @param {HeadPicture} picture
 * @param {Looks} looks
 * @param {Pins} looked
 */
export function chosenOf(picture, { attention, series, allowed }, { side, units }) {
  const targets = allowed.shown.filter(side === "query" ? allowed.isTarget : allowed.isSource);
  const weights = chosenWeights(attention, series, side, units, targets);
  const colour = series.length === 1 ? seriesColour(picture, series[0]) : picture.theme.accent;
  return weights && { side, units, targets, colour, ...weights };
}
