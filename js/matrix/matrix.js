// The heatmap component.

import { moveInGrid } from "../core/canvas_view.js";
import { Choice } from "../core/choice.js";
import { element, hasPointer } from "../core/dom.js";
import { drawLegend, updateLegend } from "../core/legend.js";
import { createMount } from "../core/mount.js";
import { readColors } from "../core/scale.js";
import { ScrolledView } from "../core/scrolled_view.js";
import { explainRefusal, exportMatrix } from "./file.js";
import { computeMatrixLayout, findSpot, MAX_ZOOM_PITCH, stepZoom } from "./layout.js";
import { describeCell, getName, isCell, unpackMatrix } from "./model.js";
import { paintMarks, paintMatrix } from "./paint.js";
import { matrixParts, readoutNodes } from "./parts.js";

/**
 * @typedef {import("./layout.js").MatrixGeometry} MatrixGeometry
 * @typedef {import("./layout.js").Zoom} Zoom
 * @typedef {import("./model.js").Cell} Cell
 * @typedef {import("./model.js").MatrixModel} MatrixModel
 * @typedef {import("./model.js").Spot} Spot
 * @typedef {import("./paint.js").MatrixPicture} MatrixPicture
 */

/** Maximum of the preferred height, in pixels. */
const MAX_HEIGHT_IN_VIEW = 600;
/** @type {Zoom} */
const AUTOMATIC = { mode: "auto", factor: 1 };
/** @type {Zoom} */
const WHOLE = { mode: "fit", factor: 1 };

/**
 * @typedef {object} State
 * @property {string} labels digest of all labels
 * @property {number} rowCount
 * @property {number} columnCount
 * @property {Zoom} zoom
 * @property {{x: number, y: number}} scroll
 * @property {Spot | null} cursor
 */

/** @extends {ScrolledView<MatrixModel, Spot, import("./parts.js").MatrixParts, MatrixGeometry, State>} */
class MatrixView extends ScrolledView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const parts = matrixParts(root);
    super(root, parts);
    /** @type {Zoom} */
    this.zoom = AUTOMATIC;
    /** @type {Choice<{row: number | null, column: number | null}>} */
    this.choice = new Choice();
    /** A message in place of the readout. @type {string | null} */
    this.notice = null;
    this.wheelDelta = 0;
    /** @type {import("../core/scale.js").Colors} */
    this.colors = { css: [], rgba: new Uint32Array(), inks: [] };
    parts.scroll.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    parts.out.onclick = () => this.zoomBy(1 / 1.3);
    parts.in.onclick = () => this.zoomBy(1.3);
    parts.fit.onclick = () => this.toggleFit();
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue }) {
    this.choice.onChange = (report) => setStateValue("cell", report);
  }

  /** @override @param {Uint8Array} data */
  readPayload(data) {
    const previous = this.hasModel ? this.model : null;
    const model = unpackMatrix(data);
    this.setModel(model);
    const { key, labels, revision, pinned } = model;
    const [row, column] = pinned ?? [null, null];
    this.choice.receive(key, { revision, of: labels, row, column });
    if (previous?.labels === labels) return;
    const { savedState } = this;
    const state = savedState && isSimilar(savedState, model) ? savedState : null;
    this.zoom = state?.zoom ?? (model.whole ? WHOLE : AUTOMATIC);
    this.pendingScroll = state?.scroll ?? { x: 0, y: 0 };
    this.cursor = state?.cursor ?? null;
    this.hovered = null;
  }

  /** @returns {Cell | null} */
  get pinned() {
    const { row = null, column = null } = this.choice.current ?? {};
    return row === null || column === null ? null : { row, column };
  }

  /** @override */
  get state() {
    const { labels, rowCount, columnCount } = this.model;
    const { x, y } = this.viewport;
    return { labels, rowCount, columnCount, zoom: this.zoom, scroll: { x, y }, cursor: this.cursor };
  }

  /** @override */
  updateControls() {
    const { model, parts, theme } = this;
    this.colors = readColors(theme.isDark ? model.darkTable : model.lightTable);
    parts.stage.setAttribute("aria-label", model.caption);
    updateLegend(parts, model);
    parts.legendText.classList.toggle("has-missing", model.missing);
  }

  // Size and drawing

  /** @override */
  get maxHeight() {
    return Math.max(420, Math.min(window.innerHeight * 0.85, 860));
  }

  /** @override @param {{width: number, height: number}} box */
  computeLayout(box) {
    // Prefer a height that fits into the window together with the page's title and controls. In a high window, limit
    // the height, because larger cells are not easier to read.
    const inView = Math.min(Math.max(360, window.innerHeight * 0.62), MAX_HEIGHT_IN_VIEW);
    return computeMatrixLayout(this.model, { ...box, inView }, this.zoom, this.measure);
  }

  /** @returns {MatrixPicture} */
  get picture() {
    const { model, theme, colors, measure, geometry, ratio, viewport } = this;
    return { model, theme, colors, measure, geometry, ratio, viewport };
  }

  /** @override */
  layOut() {
    super.layOut();
    this.updateTools();
  }

  /** @override */
  paint() {
    paintMatrix(this.penFor(this.parts.base), this.picture);
    this.paintOverlay();
    drawLegend(this.parts, this.theme, this.colors, this.ratio);
  }

  /** @override */
  paintOverlay() {
    const { active, pinned } = this;
    paintMarks(this.penFor(this.parts.stage), this.picture, { active, pinned });
    this.updateReadout(active);
  }

  updateTools() {
    const { parts, zoom, geometry } = this;
    const fits = zoom.mode === "fit";
    parts.fit.setAttribute("aria-pressed", String(fits));
    parts.fit.title = fits ? "Back to a readable size" : "Show every cell at once";
    parts.fit.setAttribute("aria-label", `Fit: ${parts.fit.title.toLowerCase()}`);
    parts.out.disabled = geometry.pitchX <= geometry.whole.x + 0.01;
    parts.in.disabled = geometry.pitchX >= MAX_ZOOM_PITCH;
  }

  /** @param {Spot | null} active */
  updateReadout(active) {
    const { parts, model, pinned } = this;
    if (this.notice) parts.readout.replaceChildren(this.notice);
    else if (active) parts.readout.replaceChildren(...readoutNodes(model, active));
    else parts.readout.replaceChildren(element("span", { class: "name" }, model.caption));
    parts.pinnedLine.classList.toggle("hint", !pinned);
    if (pinned) {
      const dot = element("span", { class: "dot" }, "Pinned");
      parts.pinnedLine.replaceChildren(dot, ...readoutNodes(model, pinned));
    } else parts.pinnedLine.replaceChildren(this.formatHint());
  }

  formatHint() {
    const { contentWidth, contentHeight } = this.geometry;
    const { width, height } = this.viewport;
    if (contentWidth <= width + 1 && contentHeight <= height + 1) {
      return hasPointer() ? "Point at a cell or use the arrow keys; click to pin it" : "Tap a cell to pin it";
    }
    return `${this.model.rowCount} × ${this.model.columnCount} cells: scroll, or press Fit to see them all`;
  }

  // Handling of pointer and keyboard

  /** @override @param {MouseEvent} event */
  findPlace(event) {
    return findSpot(this.model, this.geometry, this.viewport, event.offsetX, event.offsetY);
  }

  /** @override */
  getInitialPlace() {
    return this.pinned ?? { row: 0, column: 0 };
  }

  /** @override @param {Spot | null} spot */
  updatePointer(spot) {
    const { stage } = this.parts;
    this.notice = null;
    stage.title = this.getFullLabel(spot);
    stage.style.cursor = isCell(spot) ? "crosshair" : "default";
  }

  /** Returns the full text of the label at a spot, which may be truncated. @param {Spot | null} spot */
  getFullLabel(spot) {
    if (!spot || isCell(spot)) return "";
    return spot.row === null
      ? getName(this.model, "column", Number(spot.column))
      : getName(this.model, "row", spot.row);
  }

  /** @override @param {Spot} spot */
  activatePlace(spot) {
    if (!isCell(spot)) return;
    this.cursor = spot;
    const isPinned = this.pinned?.row === spot.row && this.pinned.column === spot.column;
    this.setPin(isPinned ? null : spot);
  }

  /** @param {Cell | null} cell */
  setPin(cell) {
    this.choice.choose(cell ?? { row: null, column: null });
    this.remember();
    this.paintOverlay();
    this.announce(cell ? `Pinned: ${describeCell(this.model, cell)}` : "Nothing is pinned");
  }

  /** @override */
  clearPins() {
    if (!this.pinned) return false;
    this.setPin(null);
    return true;
  }

  /** @override @param {string} key */
  handleOtherKey(key) {
    if (key === "+" || key === "=") this.zoomBy(1.3);
    else if (key === "-") this.zoomBy(1 / 1.3);
    else return false;
    return true;
  }

  /** @override @param {string} key @param {Spot} from */
  findDestination(key, from) {
    const { rowCount: rows, columnCount: columns } = this.model;
    const page = Math.max(
      Math.floor((this.viewport.height - this.geometry.top) / this.geometry.pitchY) - 1,
      1,
    );
    const cell = { row: Number(from.row), column: Number(from.column) };
    return moveInGrid(key, cell, { rows, columns, page });
  }

  /** @override @param {Spot} spot */
  describePlace(spot) {
    return isCell(spot) ? describeCell(this.model, spot) : "";
  }

  /** Scrolls a cell into view. @override @param {Spot} spot */
  reveal({ row, column }) {
    const { left, top, pitchX, pitchY } = this.geometry;
    const { x, y, width, height } = this.viewport;
    /** @param {number} start @param {number} pitch @param {number} from @param {number} room */
    const reveal = (start, pitch, from, room) => Math.max(Math.min(from, start), start + pitch - room);
    this.scrollTo(
      reveal(Number(column) * pitchX, pitchX, x, width - left - 2),
      reveal(Number(row) * pitchY, pitchY, y, height - top - 2),
    );
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault(); // Prevent the browser from zooming the page.
    // Touchpads send many small deltas. Their sum is divided into steps like those of a mouse wheel.
    this.wheelDelta -= event.deltaY;
    if (Math.abs(this.wheelDelta) < 40) return;
    this.zoomBy(this.wheelDelta > 0 ? 1.15 : 1 / 1.15, { x: event.offsetX, y: event.offsetY });
    this.wheelDelta = 0;
  }

  toggleFit() {
    this.zoom = this.zoom.mode === "fit" ? AUTOMATIC : WHOLE;
    this.layOut();
    this.remember();
  }

  /**
   * Zooms around a point of the view, by default its center.
   *
   * @param {number} ratio
   * @param {{x: number, y: number}} [point]
   */
  zoomBy(ratio, point) {
    const { geometry: old, viewport } = this;
    const anchor = point ?? { x: (viewport.width + old.left) / 2, y: (viewport.height + old.top) / 2 };
    const minFactor = old.whole.x / old.automatic.x;
    const maxFactor = MAX_ZOOM_PITCH / old.automatic.x;
    const factor = Math.min(Math.max(stepZoom(old, ratio), minFactor), maxFactor);
    this.zoom = factor <= minFactor * 1.001 ? WHOLE : { mode: "free", factor };
    const column = (anchor.x - old.left + viewport.x) / old.pitchX;
    const row = (anchor.y - old.top + viewport.y) / old.pitchY;
    this.layOut();
    const { left, top, pitchX, pitchY } = this.geometry;
    this.scrollTo(column * pitchX - (anchor.x - left), row * pitchY - (anchor.y - top));
    this.paint();
    this.remember();
  }

  // Export to files

  /** @override @param {"png" | "svg"} kind */
  async save(kind) {
    this.notice = kind === "svg" ? explainRefusal(this.model) : null;
    if (!this.notice) return super.save(kind);
    this.announce(this.notice);
    return this.paintOverlay();
  }

  /** @override @param {"png" | "svg"} kind */
  createPicture(kind) {
    return exportMatrix(this.picture, kind);
  }
}

/**
 * Returns whether the zoom, scroll position and cursor of a state apply to a heatmap of the same labels or size.
 *
 * @param {State} state
 * @param {MatrixModel} model
 */
function isSimilar(state, { labels, rowCount, columnCount }) {
  return state.labels === labels || (state.rowCount === rowCount && state.columnCount === columnCount);
}

export default createMount(".matrix", MatrixView);
