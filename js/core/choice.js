// The user's choice in a token strip or a heatmap, such as a pinned cell. It survives remounts of the component, and
// older choices that arrive late from the server do not replace it.

import { requireValue } from "./require_value.js";
import { pickNewer } from "./selection.js";

/**
 * A choice as it is exchanged between the server and the browser.
 *
 * @template Value
 * @typedef {Value & {revision: number, of: string}} Versioned `of` identifies the data to which the choice applies
 */

/**
 * The latest choice of the user for each component, by key. It outlives the component.
 *
 * @type {Map<string, Versioned<object>>}
 */
const choices = new Map();

/** @template {object} Value */
export class Choice {
  constructor() {
    this.key = "";
    /** @type {(choice: Versioned<Value>) => void} */
    this.onChange = () => {};
    /** The current choice; null before the first data arrives. @type {Versioned<Value> | null} */
    this.current = null;
  }

  /**
   * Replaces the current choice with a choice from the server if the revision of the server is newer.
   *
   * @param {string} key of the component
   * @param {Versioned<Value>} received
   */
  receive(key, received) {
    this.key = key;
    const own = /** @type {Versioned<Value> | undefined} */ (choices.get(key));
    this.current = pickNewer(own, received);
  }

  /** Stores a choice of the user, and reports it to the server. @param {Value} value */
  choose(value) {
    const { revision, of } = requireValue(this.current, "choice");
    const lastRevision = choices.get(this.key)?.revision ?? 0;
    this.current = { ...value, revision: Math.max(revision, lastRevision) + 1, of };
    choices.set(this.key, this.current);
    this.onChange(this.current);
  }
}
