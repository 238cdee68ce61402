// What a reader looks at: the value that `views/view.py` keeps, and which of two is the later one.

/** In place of a head's index: the mean over all heads of the layer. */
export const MEAN = "mean";

/** @typedef {number | typeof MEAN} Head an index among the heads, from 0, or their mean */
/** @typedef {"query" | "key"} Side */
/** @typedef {{side: Side, units: number[]}} Pins */

/**
 * How it is drawn; see `Options` there.
 *
 * @typedef {object} Options
 * @property {"columns" | "reading"} layout
 * @property {string} direction between the texts of a pair: "all", or from one to the other as in "AB"
 * @property {boolean} specials
 * @property {boolean} fit
 * @property {number | null} step the threshold as a share of the strongest line; null draws the strongest lines
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
 * Which of two is shown: the one of the higher revision. At a tie it is the own one, as that is what the reader did
 * last; a page that runs more slowly than the reader chooses sends lower ones.
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
 * After a choice of the reader's.
 *
 * @param {Shown} shown
 * @param {Partial<View>} change
 * @returns {Shown}
 */
export function changed({ revision, of, view }, change) {
  return { revision: revision + 1, of, view: { ...view, ...change } };
}

/**
 * A layer that there is.
 *
 * @param {number} layer
 * @param {number} layers
 */
export function layerWithin(layer, layers) {
  return Math.min(Math.max(layer, 1), layers);
}

/**
 * The heads after one of them was added or taken away; none are their mean.
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
 * One head on or back; before the first comes the mean.
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
 * What readers saw last, by the key of the view and as long as the page: one that is mounted anew goes on from there.
 *
 * @type {Map<string, Shown>}
 */
const seen = new Map();

/** What is shown now that the page sent something. @param {string} key @param {Shown} sent */
export function resumed(key, sent) {
  const shown = later(seen.get(key), sent);
  seen.set(key, shown);
  return shown;
}

/**
 * The newest choice of a view. A view that was replaced while its layer loaded reports after its replacement, and
 * its own choice would overwrite a newer one.
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
