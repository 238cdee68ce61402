// The user's choice in a token strip or a heatmap. It survives remounts, and outdated data from the page do not replace
// it.

import { requireValue } from "./require_value.js";
import { pickNewer } from "./selection.js";

/**
 * A choice as exchanged between page and browser.
 *
 * @template Value
 * @typedef {Value & {revision: number, of: string}} Versioned `of` identifies the data to which the choice applies
 */

/**
 * The user's choices by key of the component, for the lifetime of the page.
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
   * Replaces the current choice with a choice from the page if the page's revision is newer.
   *
   * @param {string} key of the component
   * @param {Versioned<Value>} received
   */
  receive(key, received) {
    this.key = key;
    const own = /** @type {Versioned<Value> | undefined} */ (choices.get(key));
    this.current = pickNewer(own, received);
  }

  /** Stores a choice, and reports it to the page. @param {Value} value */
  choose(value) {
    const { revision, of } = requireValue(this.current, "choice");
    const lastRevision = choices.get(this.key)?.revision ?? 0;
    this.current = { ...value, revision: Math.max(revision, lastRevision) + 1, of };
    choices.set(this.key, this.current);
    this.onChange(this.current);
  }
}
