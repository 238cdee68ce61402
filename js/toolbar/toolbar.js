// The toolbar as a component of its own, above a picture without a toolbar.

import { mounting } from "../core/mount.js";
import { Source } from "../core/source.js";
import { changed, keep, resumed } from "../core/view.js";
import { Toolbar } from "./bar.js";

/**
 * The data from `views/toolbar.py`.
 *
 * @typedef {{key: string, shown: import("../core/view.js").Shown, offer: import("./bar.js").Offer, source: string}} Data
 */

class ToolbarView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.bar = new Toolbar((change, made) => this.look(change, made));
    /** @type {string[][]} */
    this.labels = [];
    // Set by the first update, before anything reads them.
    this.data = /** @type {Data} */ (/** @type {unknown} */ (null));
    this.shown = /** @type {import("../core/view.js").Shown} */ (/** @type {unknown} */ (null));
    /** @type {(report: unknown) => void} */
    this.tell = () => {};
    root.replaceChildren(this.bar.root);
  }

  /** @param {import("../core/mount.js").Component<Data>} component */
  update({ data, setStateValue }) {
    this.tell = (report) => setStateValue("shown", report);
    const fresh = this.data?.source !== data.source;
    this.data = data;
    this.shown = resumed(data.key, data.shown);
    if (fresh) {
      this.labels = [];
      this.askForLabels(new Source(data.source, undefined));
    }
    this.describe();
    return undefined;
  }

  /** Requests the labels of the heads after painting, because they take longer. @param {Source} source */
  async askForLabels(source) {
    const labels = await source.labels();
    if (source.address !== this.data.source) return;
    this.labels = labels;
    this.describe();
  }

  describe() {
    this.bar.show({ offer: this.data.offer, view: this.shown.view, labels: this.labels });
  }

  /** @param {Partial<import("../core/view.js").View>} change @param {boolean} made */
  look(change, made) {
    this.shown = changed(this.shown, change);
    keep(this.data.key, this.shown);
    this.describe();
    if (made) this.tell(this.shown);
  }
}

export default mounting(".toolbar", ToolbarView);
