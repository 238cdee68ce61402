// What a reader chose in a component: it outlives a remount, and data that the page sent before it knew of the choice.

import { later } from "./view.js";

/**
 * A choice as page and browser exchange it.
 *
 * @template Value
 * @typedef {Value & {revision: number, of: string}} Versioned `of` names what the choice is about
 */

/**
 * The readers' own choices by the component's key, for as long as the page.
 *
 * @type {Map<string, Versioned<any>>}
 */
const made = new Map();

/** @template {object} Value */
export class Choice {
  constructor() {
    this.key = "";
    /** @type {(report: Versioned<Value>) => void} */
    this.report = () => {};
    // Set by the first data, before anything reads it.
    this.now = /** @type {Versioned<Value>} */ (/** @type {unknown} */ (null));
  }

  /**
   * The choice to show when the page has sent one: the reader's own until the page knows of it.
   *
   * @param {string} key of the component
   * @param {Versioned<Value>} sent
   */
  receive(key, sent) {
    this.key = key;
    this.now = later(made.get(key), sent);
    return this.now;
  }

  /** Chooses, and tells the page. @param {Value} value */
  make(value) {
    const { revision, of } = this.now;
    const before = made.get(this.key)?.revision ?? 0;
    this.now = { ...value, revision: Math.max(revision, before) + 1, of };
    made.set(this.key, this.now);
    this.report(this.now);
  }
}
