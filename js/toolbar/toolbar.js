// The toolbar as a separate component, above a picture without a toolbar.

import { createMount } from "../core/mount.js";
import { applyChange, rememberSelection, resumeSelection } from "../core/selection.js";
import { LayerSource } from "../core/source.js";
import { Toolbar } from "./bar.js";

/**
 * The data from `views/head_view.py`.
 *
 * @typedef {object} ToolbarData
 * @property {string} key
 * @property {VersionedSelection} selection
 * @property {import("./bar.js").ToolbarOptions} offer
 * @property {string} source URL prefix of the layers
 */

/** @typedef {import("../core/selection.js").VersionedSelection} VersionedSelection */

class ToolbarView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.bar = new Toolbar((change, isFinal) => this.updateSelection(change, isFinal));
    /** @type {string[][]} */
    this.labels = [];
    /** @type {ToolbarData | null} */
    this.data = null;
    /** @type {(versioned: VersionedSelection) => void} */
    this.sendReport = () => {};
    root.replaceChildren(this.bar.root);
  }

  /** @param {import("../core/mount.js").Component<ToolbarData>} component */
  update({ data, setStateValue }) {
    this.sendReport = (versioned) => setStateValue("selection", versioned);
    const isNewSource = this.data?.source !== data.source;
    this.data = { ...data, selection: resumeSelection(data.key, data.selection) };
    if (isNewSource) {
      this.labels = [];
      this.loadLabels(new LayerSource(data.source, undefined));
    }
    this.updateControls();
    return undefined;
  }

  /** Requests the labels of the heads after painting, because they take longer. @param {LayerSource} source */
  async loadLabels(source) {
    const labels = await source.getLabels();
    if (source.urlPrefix !== this.data?.source) return;
    this.labels = labels;
    this.updateControls();
  }

  updateControls() {
    if (!this.data) return;
    const { offer, selection } = this.data;
    this.bar.update({ offer, selection: selection.value, labels: this.labels });
  }

  /** @param {Partial<import("../core/selection.js").Selection>} change @param {boolean} isFinal */
  updateSelection(change, isFinal) {
    if (!this.data) return;
    const selection = applyChange(this.data.selection, change);
    this.data = { ...this.data, selection };
    rememberSelection(this.data.key, selection);
    this.updateControls();
    if (isFinal) this.sendReport(selection);
  }
}

export default createMount(".toolbar", ToolbarView);
