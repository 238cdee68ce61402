// The selection in an attention view (layer, heads, pins and options) and its revision; see `views/selection.py`.

/** The value that selects the mean over all heads of the layer, in place of the index of a head. */
export const MEAN = "mean";

/** @typedef {number | typeof MEAN} Head the index of a head, from 0, or the mean over all heads */
/** @typedef {"query" | "key"} Side */
/** @typedef {{side: Side, units: number[]}} Pins the pinned tokens or words, by index, which are all on one side */

/**
 * Drawing options; see `Options` in `views/selection.py`.
 *
 * @typedef {object} Options
 * @property {"columns" | "reading"} layout
 * @property {string} direction visible attention in a text pair: "all", or from one text to the other, such as "AB"
 * from A to B
 * @property {boolean} specials
 * @property {boolean} fit
 * @property {number | null} step threshold as a share of the maximum weight; null draws the strongest lines
 * @property {boolean} renormalize
 * @property {boolean} root
 */

/**
 * @typedef {object} Selection
 * @property {number} layer from 1
 * @property {Head[]} heads
 * @property {string} measure
 * @property {boolean} words
 * @property {number} residual
 * @property {Options} options
 * @property {Pins} pins
 */

/** @typedef {{revision: number, of: string, value: Selection}} VersionedSelection */

/**
 * Returns the value with the higher revision. If both are equal, the browser's own value wins, because the server may
 * have sent its data before the user's latest click. A value for other data is never kept.
 *
 * @template {{revision: number, of: string}} Versioned
 * @param {Versioned | null | undefined} own
 * @param {Versioned} received
 * @returns {Versioned}
 */
export function pickNewer(own, received) {
  return own && own.of === received.of && own.revision >= received.revision ? own : received;
}

/**
 * Returns a selection with a change of the user and the next revision.
 *
 * @param {VersionedSelection} versioned
 * @param {Partial<Selection>} change
 * @returns {VersionedSelection}
 */
export function applyChange({ revision, of, value }, change) {
  return { revision: revision + 1, of, value: { ...value, ...change } };
}

/**
 * Returns a layer number clamped to 1 … `layers`.
 *
 * @param {number} layer
 * @param {number} layers
 */
export function clampLayer(layer, layers) {
  return Math.min(Math.max(layer, 1), layers);
}

/**
 * Adds a head to the selected heads, or removes it. If no head is left, the result is the mean.
 *
 * @param {Head[]} heads
 * @param {number} head
 * @returns {Head[]}
 */
export function toggleHead(heads, head) {
  const remaining = heads.filter((other) => other !== MEAN && other !== head);
  const next = heads.includes(head) ? remaining : [...remaining, head].sort((a, b) => Number(a) - Number(b));
  return next.length ? next : [MEAN];
}

/**
 * Returns the next or the previous head. The mean precedes the first head.
 *
 * @param {Head[]} heads
 * @param {number} step
 * @param {number} count
 * @returns {Head[]}
 */
export function stepHead(heads, step, count) {
  const [first] = heads;
  const currentHead = heads.length === 1 && first !== MEAN ? first : -1;
  const next = Math.min(Math.max(currentHead + step, -1), count - 1);
  return [next < 0 ? MEAN : next];
}

/**
 * The latest selection of each view, by key. It outlives the view, so that a remounted view continues with it.
 *
 * @type {Map<string, VersionedSelection>}
 */
const latestSelections = new Map();

/**
 * Stores and returns the newer of the stored and the received selection.
 *
 * @param {string} key @param {VersionedSelection} received
 */
export function resumeSelection(key, received) {
  const newer = pickNewer(latestSelections.get(key), received);
  latestSelections.set(key, newer);
  return newer;
}

/**
 * Returns the newest selection under a key. A view that was replaced while its layer was loading reports late, and must
 * report the selection of the view that replaced it instead of its own.
 *
 * @param {string} key
 * @param {VersionedSelection} fallback
 */
export function getLatestSelection(key, fallback) {
  return latestSelections.get(key) ?? fallback;
}

/** @param {string} key @param {VersionedSelection} selection */
export function rememberSelection(key, selection) {
  latestSelections.set(key, selection);
}
