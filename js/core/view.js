// The state of an attention view, see `views/view.py`, and its revisions.

/** Instead of a head's index: the mean over all heads of the layer. */
export const MEAN = "mean";

/** @typedef {number | typeof MEAN} Head an index among the heads, from 0, or their mean */
/** @typedef {"query" | "key"} Side */
/** @typedef {{side: Side, units: number[]}} Pins */

/**
 * Drawing options; see `Options` in `views/view.py`.
 *
 * @typedef {object} Options
 * @property {"columns" | "reading"} layout
 * @property {string} direction visible attention in a text pair: "all", or from one text to another as in "AB"
 * @property {boolean} specials
 * @property {boolean} fit
 * @property {number | null} step threshold as a share of the maximum weight; null draws the strongest lines
 * @property {boolean} renormalise
 * @property {boolean} root
 */

/**
 * @typedef {object} View
 * @property {number} layer from 1
 * @property {Head[]} heads
 * @property {string} measure
 * @property {boolean} words
 * @property {number} residual
 * @property {Options} options
 * @property {Pins} pins
 */

/** @typedef {{revision: number, of: string, view: View}} Shown */

/**
 * The newer of two values, by revision. At a tie it is the browser's own, because the user's choice is newer than the
 * data of a page that runs more slowly than the user clicks.
 *
 * @template {{revision: number, of: string}} Versioned
 * @param {Versioned | null | undefined} own
 * @param {Versioned} sent
 * @returns {Versioned}
 */
export function later(own, sent) {
  return own && own.of === sent.of && own.revision >= sent.revision ? own : sent;
}

/**
 * Applies the user's change, with a new revision.
 *
 * @param {Shown} shown
 * @param {Partial<View>} change
 * @returns {Shown}
 */
export function changed({ revision, of, view }, change) {
  return { revision: revision + 1, of, view: { ...view, ...change } };
}

/**
 * A layer clamped to the existing ones.
 *
 * @param {number} layer
 * @param {number} layers
 */
export function layerWithin(layer, layers) {
  return Math.min(Math.max(layer, 1), layers);
}

/**
 * Adds or removes a head; without any head the result is the mean.
 *
 * @param {Head[]} heads
 * @param {number} head
 * @returns {Head[]}
 */
export function toggled(heads, head) {
  const others = heads.filter((one) => one !== MEAN && one !== head);
  const next = heads.includes(head) ? others : [...others, head].sort((a, b) => Number(a) - Number(b));
  return next.length ? next : [MEAN];
}

/**
 * The next or the previous head; the mean precedes the first one.
 *
 * @param {Head[]} heads
 * @param {number} by
 * @param {number} count
 * @returns {Head[]}
 */
export function stepped(heads, by, count) {
  const [first] = heads;
  const now = heads.length === 1 && first !== MEAN ? first : -1;
  const next = Math.min(Math.max(now + by, -1), count - 1);
  return [next < 0 ? MEAN : next];
}

/**
 * The latest state by key of the view, for the lifetime of the page, so that a remount continues with it.
 *
 * @type {Map<string, Shown>}
 */
const seen = new Map();

/** The current state after the page sent one. @param {string} key @param {Shown} sent */
export function resumed(key, sent) {
  const shown = later(seen.get(key), sent);
  seen.set(key, shown);
  return shown;
}

/**
 * The newest state of a view. A view that was replaced while its layer was loading reports late and must not overwrite
 * the newer state of its replacement.
 *
 * @param {string} key
 * @param {Shown} shown
 */
export function newest(key, shown) {
  return seen.get(key) ?? shown;
}

/** @param {string} key @param {Shown} shown */
export function keep(key, shown) {
  seen.set(key, shown);
}
