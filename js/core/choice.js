// The user's choice in a component, which survives remounts and outdated data from the page.

import { later } from "./view.js";

/**
 * A choice as exchanged between page and browser.
 *
 * @template Value
 * @typedef {Value & {revision: number, of: string}} Versioned `of` names the data that the choice belongs to
 */

/**
 * The user's choices by key of the component, for the lifetime of the page.
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
   * The current choice after the page has sent one: the user's own, unless the page has a newer revision.
   *
   * @param {string} key of the component
   * @param {Versioned<Value>} sent
   */
  receive(key, sent) {
    this.key = key;
    this.now = later(made.get(key), sent);
    return this.now;
  }

  /** Stores a choice, and reports it to the page. @param {Value} value */
  make(value) {
    const { revision, of } = this.now;
    const before = made.get(this.key)?.revision ?? 0;
    this.now = { ...value, revision: Math.max(revision, before) + 1, of };
    made.set(this.key, this.now);
    this.report(this.now);
  }
}
