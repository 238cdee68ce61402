// The head view component: attention as lines between tokens. `versioned` is the only copy of the selection.

import { clampIndex, lookUp } from "../core/canvas_view.js";
import { element, hasPointer } from "../core/dom.js";
import { createMount } from "../core/mount.js";
import { Payload } from "../core/payload.js";
import { requireValue } from "../core/require_value.js";
import { ScrolledView } from "../core/scrolled_view.js";
import {
  applyChange,
  getLatestSelection,
  MEAN,
  rememberSelection,
  resumeSelection,
  stepHead,
} from "../core/selection.js";
import { LayerSource } from "../core/source.js";
import { formatShort } from "../core/text.js";
import { Toolbar } from "../toolbar/bar.js";
import { Attention } from "./attention.js";
import { exportHeads } from "./export.js";
import { computeHeadLayout, findUnit, getVisibleRange } from "./layout.js";
import { createLineFilter } from "./lines.js";
import { computeActiveWeights, computeBars, selectVisibleLines } from "./marks.js";
import { labelUnit, nameLayer, nameUnit, switchUnits, tagUnit, unpackHeads } from "./model.js";
import { paintActive, paintCursor, paintHeads } from "./paint.js";
import { headParts } from "./parts.js";
import {
  createReadout,
  createReason,
  createTable,
  createTitle,
  describeLines,
  describeSpecials,
  formatTitle,
} from "./sentences.js";

/**
 * @typedef {import("../core/selection.js").Head} Head
 * @typedef {import("../core/selection.js").Pins} Pins
 * @typedef {import("../core/selection.js").VersionedSelection} VersionedSelection
 * @typedef {import("../core/selection.js").Selection} Selection
 * @typedef {import("../toolbar/bar.js").ToolbarOptions} ToolbarOptions
 * @typedef {import("./layout.js").HeadGeometry} HeadGeometry
 * @typedef {import("./layout.js").Place} Place
 * @typedef {import("./lines.js").LineFilter} LineFilter
 * @typedef {import("./model.js").HeadModel} HeadModel
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("./sentences.js").Reason} Reason
 */

/**
 * The data from `views/head_view.py`; the payload contains the data of the initial layer, or the view fetches them.
 *
 * @typedef {object} HeadViewData
 * @property {string} key
 * @property {VersionedSelection} selection the initial selection
 * @property {ToolbarOptions} offer
 * @property {string} source URL prefix of the layers
 * @property {Reason | null} reason why the app selected a head
 */

/** @typedef {{units: string, scroll: {x: number, y: number}}} State */

/** @extends {ScrolledView<HeadModel, Place, import("./parts.js").HeadParts, HeadGeometry, State>} */
class HeadView extends ScrolledView {
  /** @type {HeadViewData | null} */
  #initial = null;
  /** @type {VersionedSelection | null} */
  #versioned = null;
  /** @type {Attention | null} */
  #attention = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    const toolbar = new Toolbar((change, isFinal) => this.updateSelection(change, isFinal));
    const parts = headParts(root, toolbar.root);
    super(root, parts);
    this.toolbar = toolbar;
    /** @type {LineFilter} */
    this.lineFilter = { units: [], isSource: () => false, isTarget: () => false };
    /** @type {Map<number, number>} */
    this.unitIndices = new Map();
    /** The labels of the heads, [layer][head]; empty until they arrive. @type {string[][]} */
    this.labels = [];
    this.requestCount = 0;
    /** The latest revision that was reported to the page. */
    this.reportedRevision = 0;
    this.unitNames = "";
    this.isWaiting = false;
    this.preparationTimer = 0;
    /** @type {LayerSource | null} */
    this.source = null;
    /** @type {(report: unknown) => void} */
    this.sendReport = () => {};
    /** @type {import("../core/mount.js").Component<Uint8Array>["fetchLayer"]} */
    this.fetchLayer = undefined;
    parts.scroll.hidden = true; // There is no model until the first layer has arrived.
    parts.details.ontoggle = () => this.paintOverlay();
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue, fetchLayer, onSelectionRequest }) {
    this.sendReport = (report) => setStateValue("selection", report);
    this.fetchLayer = fetchLayer;
    onSelectionRequest?.(({ layer, heads, words, pins }) =>
      this.updateSelection({ layer, heads, words, pins }),
    );
  }

  // State of the view

  /** The data of the last payload. @returns {HeadViewData} */
  get initial() {
    return requireValue(this.#initial, "initial data");
  }

  /** The current selection and its revision. @returns {VersionedSelection} */
  get versioned() {
    return requireValue(this.#versioned, "selection");
  }

  /** @returns {Selection} */
  get selection() {
    return this.versioned.value;
  }

  /** The attention of the current layer. @returns {Attention} */
  get attention() {
    return requireValue(this.#attention, "attention");
  }

  /** The visible heads. @returns {Head[]} */
  get series() {
    const { rolled, heads } = this.model;
    const valid = rolled ? [] : this.selection.heads.filter((head) => head === MEAN || head < heads.length);
    return valid.length ? valid : [MEAN];
  }

  /** The pinned tokens or words that are visible. @returns {Pins} */
  get pins() {
    const { side, units } = this.selection.pins;
    return { side, units: units.filter((unit) => unit < this.model.units.length) };
  }

  /** @override @param {Uint8Array} data */
  readPayload(data) {
    /** @type {Payload<HeadViewData>} */
    const payload = new Payload(data);
    const { key, selection, source } = payload.description;
    this.#initial = payload.description;
    this.#versioned = resumeSelection(key, selection);
    this.reportedRevision = Math.max(this.reportedRevision, selection.revision);
    const isNewSource = this.source?.urlPrefix !== source;
    if (isNewSource) {
      this.source = new LayerSource(source, this.fetchLayer);
      this.labels = [];
    }
    const received = payload.has("firsts") ? unpackHeads(data) : null;
    if (received?.layer === this.selection.layer) {
      this.requestCount++; // A layer that is still loading is outdated and will be discarded.
      this.setLayer(received);
      this.finishLoading();
    } else if (isNewSource || !this.hasModel || this.model.layer !== this.selection.layer) this.loadLayer();
  }

  /**
   * Changes the selection, and reports it to the page after painting, because painting is more urgent.
   *
   * @param {Partial<Selection>} change
   * @param {boolean} isFinal whether the change is final, and not part of a drag
   */
  updateSelection(change, isFinal = true) {
    if (change.options && change.options.layout !== this.selection.options.layout) {
      this.pendingScroll = { x: 0, y: 0 };
    }
    this.#versioned = applyChange(this.versioned, change);
    rememberSelection(this.initial.key, this.versioned);
    this.updateControls();
    if (change.layer !== undefined) {
      this.announce(`Layer ${this.hasModel ? nameLayer(this.model, change.layer) : change.layer}`);
      this.loadLayer();
      return;
    }
    if (!this.hasModel) {
      if (isFinal) this.reportSelection(); // Paint later, because the first layer is still loading.
      return;
    }
    if (change.heads) this.announce(formatTitle(this.model, this.series));
    if ("words" in change && this.model.other) {
      this.setLayer(this.model);
      this.updateControls();
      this.fitToWidth(true);
    } else if (change.pins && !("words" in change)) this.paintOverlay();
    else if (change.heads || change.options) this.layOut();
    if (isFinal) this.reportSelection();
  }

  /** Reports the newest selection to the page. `isLost` requests a layer that could not be fetched from the page. */
  reportSelection(isLost = false) {
    const versioned = getLatestSelection(this.initial.key, this.versioned);
    this.reportedRevision = versioned.revision;
    this.sendReport({ ...versioned, lost: isLost });
  }

  /** Fetches the selected layer, and paints it. */
  async loadLayer() {
    const request = ++this.requestCount;
    const data = await this.source?.getLayer(this.selection.layer);
    if (request !== this.requestCount) return;
    if (!data) {
      this.reportSelection(true);
      return;
    }
    const { unitNames } = this;
    this.setLayer(unpackHeads(data));
    this.updateControls();
    if (this.unitNames === unitNames)
      this.paint(); // Do not compute the layout again, because the tokens have not moved.
    else this.fitToWidth(true);
    this.schedulePreparation();
    requestAnimationFrame(() => setTimeout(() => request === this.requestCount && this.finishLoading()));
  }

  /** After painting: reports the state to the page, and requests the labels of the heads. */
  async finishLoading() {
    if (this.versioned.revision > this.reportedRevision) this.reportSelection();
    const { source } = this;
    if (!source || this.labels.length) return;
    const labels = await source.getLabels();
    if (source !== this.source || !labels.length) return;
    this.labels = labels;
    this.updateControls();
    this.paintOverlay();
  }

  /** Sets the data of a layer. @param {HeadModel} model */
  setLayer(model) {
    this.setModel({ ...switchUnits(model, this.selection.words), key: this.initial.key });
    this.#attention = new Attention(this.model);
    if (model.labels.length) this.labels = model.labels;
    this.parts.scroll.hidden = false;
    const units = this.model.names.join("\n");
    if (this.unitNames === units) return;
    this.unitNames = units;
    this.pendingScroll = this.savedState?.units === units ? this.savedState.scroll : { x: 0, y: 0 };
    this.hovered = this.cursor = null;
  }

  /** @override */
  get state() {
    const { x, y } = this.viewport;
    return { units: this.unitNames, scroll: { x, y } };
  }

  /** @override */
  updateControls() {
    const { offer } = this.initial;
    this.toolbar.update({
      offer,
      selection: this.selection,
      labels: this.labels,
      layerNumbers: this.hasModel ? this.model.layerNumbers : null,
    });
    if (this.hasModel) this.parts.stage.setAttribute("aria-label", formatTitle(this.model, this.series));
  }

  // Size and drawing

  /** @override */
  get maxHeight() {
    return Math.max(420, Math.min(window.innerHeight * 0.72, 860));
  }

  /** @override @param {{width: number, height: number}} box */
  computeLayout(box) {
    const { model, lineFilter, measure } = this;
    const names = lineFilter.units.map((unit) => labelUnit(model, unit));
    return computeHeadLayout(names, box, this.selection.options, measure, model.isRuler);
  }

  /** @override */
  layOut() {
    if (!this.hasModel) return; // the model is still loading
    this.lineFilter = createLineFilter(this.model, this.selection.options);
    this.unitIndices = new Map(this.lineFilter.units.map((unit, index) => [unit, index]));
    super.layOut();
    this.schedulePreparation();
  }

  /** @returns {HeadPicture} */
  get picture() {
    const { model, theme, measure, geometry, unitIndices, viewport } = this;
    return { model, theme, measure, geometry, units: this.lineFilter.units, unitIndices, viewport };
  }

  /** @returns {import("./marks.js").MarkInputs} */
  get markInputs() {
    const { attention, series, lineFilter: filter } = this;
    return { attention, series, filter, options: this.selection.options };
  }

  /** @override */
  paint() {
    const { parts, model, picture, markInputs } = this;
    const selected = selectVisibleLines(picture, markInputs);
    const bars = computeBars(picture, markInputs, selected.queries);
    paintHeads(this.penFor(parts.base), picture, selected.lines, bars);
    parts.share.textContent = describeLines(model, selected) + describeSpecials(bars);
    this.toolbar.updateThreshold(this.selection.options.step, formatShort(selected.minWeight, 2));
    this.paintOverlay();
  }

  /** The token or word under the pointer or the keyboard cursor, or else the pinned ones. @returns {Pins | null} */
  get activePins() {
    const { active, pins } = this;
    if (active) return { side: active.side, units: [this.lineFilter.units[active.index]] };
    const units = pins.units.filter((unit) => this.unitIndices.has(unit));
    return units.length ? { side: pins.side, units } : null;
  }

  /** @override */
  paintOverlay() {
    if (!this.hasGeometry) return;
    const { stage, base } = this.parts;
    const { picture, activePins } = this;
    const pen = this.penFor(stage);
    const weights = activePins && computeActiveWeights(picture, this.markInputs, activePins);
    base.classList.toggle("faded", Boolean(weights));
    if (weights) paintActive(pen, picture, weights);
    if (this.focused && this.cursor) paintCursor(pen, picture, this.cursor);
    this.isWaiting = Boolean(activePins) && !weights;
    this.updateReadout(weights);
  }

  /** @param {ReturnType<typeof computeActiveWeights>} weights */
  updateReadout(weights) {
    const { parts, model, pins } = this;
    if (this.isWaiting) parts.readout.textContent = "Computing the attention on this token …";
    else if (weights) parts.readout.replaceChildren(...createReadout(model, weights));
    else {
      const { layer, heads } = this.selection;
      const { reason } = this.initial;
      const hasReason = reason?.layer === layer && heads.length === 1 && reason.head === heads[0];
      parts.readout.replaceChildren(
        ...(reason && hasReason
          ? createReason(reason, () => this.updateSelection({ heads: [MEAN] }))
          : createTitle(model, this.series, this.labels[model.layer - 1] ?? [])),
      );
    }
    const pinned = pins.units.map((unit) => tagUnit(model, unit)).join(" + ");
    parts.pinnedLine.replaceChildren(
      pinned
        ? element("span", {}, element("span", { class: "pin" }, "Pinned"), element("bdi", {}, pinned))
        : hasPointer()
          ? "Point at a token or use the arrow keys; click to pin it. Several pins are added up."
          : "Tap a token to pin it. Several pins are added up.",
    );
    parts.details.style.visibility = weights ? "visible" : "hidden"; // hides the details without a layout shift
    if (weights && parts.details.open) {
      parts.table.replaceChildren(...createTable(model, this.series, weights));
    }
  }

  /** Computes all rows while the page is idle. Hovering over a key needs its column, which depends on all rows. */
  schedulePreparation() {
    clearTimeout(this.preparationTimer);
    const [first] = this.series;
    const heads = first === MEAN ? this.model.heads.map((_, i) => i) : this.series.map(Number);
    const slice = () => {
      if (!this.attention.prepareColumns(heads, 8)) this.preparationTimer = window.setTimeout(slice, 4);
      else if (this.isWaiting) this.paintOverlay();
    };
    this.preparationTimer = window.setTimeout(slice, 30);
  }

  // Handling of pointer and keyboard

  /** @override @param {MouseEvent} event */
  findPlace(event) {
    return findUnit(this.picture, event.offsetX, event.offsetY);
  }

  /** @override @returns {Place} */
  getInitialPlace() {
    return { side: "query", index: getVisibleRange(this.picture)[0] };
  }

  /** @override @param {Place | null} place */
  updatePointer(place) {
    const { stage } = this.parts;
    stage.style.cursor = place ? "pointer" : "default";
    stage.title = place ? tagUnit(this.model, this.lineFilter.units[place.index]) : "";
  }

  /**
   * Pins a token, or unpins it. All pins are on the same side, so a pin on the other side replaces them.
   *
   * @override @param {Place} place
   */
  activatePlace(place) {
    this.cursor = place;
    const { side, index } = place;
    const unit = this.lineFilter.units[index];
    const { pins } = this;
    const pinned = pins.side === side ? pins.units : [];
    this.setPins({
      side,
      units: pinned.includes(unit) ? pinned.filter((other) => other !== unit) : [...pinned, unit],
    });
  }

  /** @param {Pins} pins */
  setPins(pins) {
    this.updateSelection({ pins });
    const names = pins.units.map((unit) => nameUnit(this.model, unit)).join(", ");
    this.announce(names ? `Pinned: ${names}` : "Nothing is pinned");
  }

  /** @override */
  clearPins() {
    if (!this.pins.units.length) return false;
    this.setPins({ side: this.pins.side, units: [] });
    return true;
  }

  /** @override @param {string} key */
  handleOtherKey(key) {
    const layer = lookUp({ "[": -1, "]": 1 }, key);
    const head = lookUp({ ",": -1, ".": 1 }, key);
    if (layer) this.toolbar.stepLayer(layer);
    else if (head && !this.model.rolled) {
      this.updateSelection({ heads: stepHead(this.selection.heads, head, this.model.heads.length) });
    }
    return Boolean(layer || head);
  }

  /** @override @param {string} key @param {Place} from @returns {Place | null} */
  findDestination(key, { side, index }) {
    const count = this.lineFilter.units.length;
    const [back, on, toQuery, toKey] = this.geometry.isVertical
      ? ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]
      : ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
    const targets = { [back]: index - 1, [on]: index + 1, Home: 0, End: count - 1 };
    const target = lookUp({ ...targets, PageUp: index - 20, PageDown: index + 20 }, key);
    if (target !== undefined) return { side, index: clampIndex(target, count) };
    if (key === toQuery) return { side: "query", index: clampIndex(index, count) };
    return key === toKey ? { side: "key", index: clampIndex(index, count) } : null;
  }

  /** @override */
  describePlace() {
    return this.parts.readout.textContent ?? "";
  }

  /** Scrolls a token or word into view. @override @param {Place} place */
  reveal({ index }) {
    const { starts, isVertical } = this.geometry;
    const { x, y, width, height } = this.viewport;
    /** @param {number} from @param {number} room */
    const reveal = (from, room) => Math.max(Math.min(from, starts[index] - 26), starts[index + 1] + 4 - room);
    if (isVertical) this.scrollTo(x, reveal(y, height));
    else this.scrollTo(reveal(x, width), y);
  }

  // Export to files

  /** @override */
  createPicture() {
    return this.hasModel ? exportHeads(this.picture, this.markInputs, this.pins) : null;
  }
}

export default createMount(".head-view", HeadView);
