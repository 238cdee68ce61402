// The heatmap as a component.

import { gridDestination } from "../core/canvas_view.js";
import { Choice } from "../core/choice.js";
import { element } from "../core/dom.js";
import { drawLegend, writeLegend } from "../core/legend.js";
import { mounting } from "../core/mount.js";
import { colorsOf } from "../core/scale.js";
import { ScrolledView } from "../core/scrolled_view.js";
import { refusal, savedMatrix } from "./file.js";
import { LARGEST_PITCH, matrixLayout, spotAt, steppedFactor } from "./layout.js";
import { isCell, sentence, unpackMatrix } from "./model.js";
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

/** @type {Zoom} */
const AUTOMATIC = { mode: "auto", factor: 1 };
/** @type {Zoom} */
const WHOLE = { mode: "fit", factor: 1 };

/** @extends {ScrolledView<MatrixModel, Spot, import("./parts.js").MatrixParts, MatrixGeometry>} */
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
    this.turned = 0;
    /** @type {import("../core/scale.js").Colors} */
    this.colors = { css: [], words: new Uint32Array(), inks: [] };
    parts.scroll.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    parts.out.onclick = () => this.zoomBy(1 / 1.3);
    parts.in.onclick = () => this.zoomBy(1.3);
    parts.fit.onclick = () => this.toggleFit();
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue }) {
    this.choice.report = (report) => setStateValue("cell", report);
  }

  /** @override @param {Uint8Array} data */
  take(data) {
    const { model: before } = this;
    this.model = unpackMatrix(data);
    const { key, labels, revision, rowCount, columnCount, pinned } = this.model;
    const [row, column] = pinned ?? [null, null];
    this.choice.receive(key, { revision, of: labels, row, column });
    if (before?.labels === labels) return;
    const { known } = this;
    const sized = known?.rowCount === rowCount && known?.columnCount === columnCount;
    const alike = known?.labels === labels || sized;
    this.zoom = alike ? known.zoom : this.model.whole ? WHOLE : AUTOMATIC;
    this.wantedScroll = alike ? known.scroll : { x: 0, y: 0 };
    this.cursor = alike ? known.cursor : null;
    this.hovered = null;
  }

  /** @returns {Cell | null} */
  get pinned() {
    const { row, column } = this.choice.now;
    return row === null || column === null ? null : { row, column };
  }

  /** @override */
  get kept() {
    const { labels, rowCount, columnCount } = this.model;
    const { x, y } = this.view;
    return { labels, rowCount, columnCount, zoom: this.zoom, scroll: { x, y }, cursor: this.cursor };
  }

  /** @override */
  describe() {
    const { model, parts, theme } = this;
    this.colors = colorsOf(theme.dark ? model.darkTable : model.lightTable);
    parts.stage.setAttribute("aria-label", model.caption);
    writeLegend(parts, model);
    parts.legendText.classList.toggle("has-missing", model.missing);
  }

  // Size and drawing

  /** @override */
  get mostHeight() {
    return Math.max(420, Math.min(window.innerHeight * 0.85, 860));
  }

  /** @override @param {{width: number, height: number}} box */
  laidOut(box) {
    // The height of the window without the page's title and controls; a short text fits into it.
    const inView = Math.max(360, window.innerHeight * 0.62);
    return matrixLayout(this.model, { ...box, inView }, this.zoom, this.measure);
  }

  /** @returns {MatrixPicture} */
  get picture() {
    const { model, theme, colors, measure, geometry, ratio, view } = this;
    return { model, theme, colors, measure, geometry, ratio, view };
  }

  /** @override */
  arrange() {
    super.arrange();
    this.setTools();
  }

  /** @override */
  paint() {
    paintMatrix(this.penFor(this.parts.base), this.picture);
    this.mark();
    drawLegend(this.parts, this.theme, this.colors, this.ratio);
  }

  /** @override */
  mark() {
    const { active, pinned } = this;
    paintMarks(this.penFor(this.parts.stage), this.picture, { active, pinned });
    this.writeReadout(active);
  }

  setTools() {
    const { parts, zoom, geometry } = this;
    const fits = zoom.mode === "fit";
    parts.fit.setAttribute("aria-pressed", String(fits));
    parts.fit.title = fits ? "Back to a readable size" : "Show every cell at once";
    parts.fit.setAttribute("aria-label", `Fit: ${parts.fit.title.toLowerCase()}`);
    parts.out.disabled = geometry.pitchX <= geometry.whole.x + 0.01;
    parts.in.disabled = geometry.pitchX >= LARGEST_PITCH;
  }

  /** @param {Spot | null} active */
  writeReadout(active) {
    const { parts, model, pinned } = this;
    if (this.notice) parts.readout.replaceChildren(this.notice);
    else if (active) parts.readout.replaceChildren(...readoutNodes(model, active));
    else parts.readout.replaceChildren(element("span", { class: "name" }, model.caption));
    parts.pinnedLine.classList.toggle("hint", !pinned);
    if (pinned) {
      const dot = element("span", { class: "dot" }, "Pinned");
      parts.pinnedLine.replaceChildren(dot, ...readoutNodes(model, pinned));
    } else parts.pinnedLine.replaceChildren(this.hint());
  }

  hint() {
    const { contentWidth, contentHeight } = this.geometry;
    const { width, height } = this.view;
    if (contentWidth <= width + 1 && contentHeight <= height + 1) {
      return "Point at a cell or use the arrow keys; click to pin it";
    }
    return `${this.model.rowCount} × ${this.model.columnCount} cells: scroll, or press Fit to see them all`;
  }

  // Interaction

  /** @override @param {MouseEvent} event */
  placeUnder(event) {
    return spotAt(this.model, this.geometry, this.view, event.offsetX, event.offsetY);
  }

  /** @override */
  firstPlace() {
    return this.pinned ?? { row: 0, column: 0 };
  }

  /** @override @param {Spot | null} spot */
  pointed(spot) {
    const { stage } = this.parts;
    this.notice = null;
    stage.title = this.wholeLabel(spot);
    stage.style.cursor = isCell(spot) ? "crosshair" : "default";
  }

  /** The full text of a label under the pointer, which may be truncated in the picture. @param {Spot | null} spot */
  wholeLabel(spot) {
    if (!spot || isCell(spot)) return "";
    return spot.row === null ? this.model.columnLabels[Number(spot.column)] : this.model.rowLabels[spot.row];
  }

  /** @override @param {Spot} spot */
  choose(spot) {
    if (!isCell(spot)) return;
    this.cursor = spot;
    const same = this.pinned?.row === spot.row && this.pinned.column === spot.column;
    this.pin(same ? null : spot);
  }

  /** @param {Cell | null} cell */
  pin(cell) {
    this.choice.make(cell ?? { row: null, column: null });
    this.remember();
    this.mark();
    this.say(cell ? `Pinned: ${sentence(this.model, cell)}` : "Nothing is pinned");
  }

  /** @override */
  letGo() {
    if (!this.pinned) return false;
    this.pin(null);
    return true;
  }

  /** @override @param {string} key */
  pressOther(key) {
    if (key === "+" || key === "=") this.zoomBy(1.3);
    else if (key === "-") this.zoomBy(1 / 1.3);
    else return false;
    return true;
  }

  /** @override @param {string} key @param {Spot} from */
  destination(key, from) {
    const { rowCount: rows, columnCount: columns } = this.model;
    const page = Math.max(Math.floor((this.view.height - this.geometry.top) / this.geometry.pitchY) - 1, 1);
    const cell = { row: Number(from.row), column: Number(from.column) };
    return gridDestination(key, cell, { rows, columns, page });
  }

  /** @override @param {Spot} spot */
  said(spot) {
    return isCell(spot) ? sentence(this.model, spot) : "";
  }

  /** Scrolls a cell into view. @override @param {Spot} spot */
  reveal({ row, column }) {
    const { left, top, pitchX, pitchY } = this.geometry;
    const { x, y, width, height } = this.view;
    /** @param {number} start @param {number} pitch @param {number} from @param {number} room */
    const shown = (start, pitch, from, room) => Math.max(Math.min(from, start), start + pitch - room);
    this.scrollTo(
      shown(Number(column) * pitchX, pitchX, x, width - left - 2),
      shown(Number(row) * pitchY, pitchY, y, height - top - 2),
    );
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault(); // otherwise the browser zooms the page
    // Touchpads send many small deltas, which are summed to the steps of a wheel.
    this.turned -= event.deltaY;
    if (Math.abs(this.turned) < 40) return;
    this.zoomBy(this.turned > 0 ? 1.15 : 1 / 1.15, { x: event.offsetX, y: event.offsetY });
    this.turned = 0;
  }

  toggleFit() {
    this.zoom = this.zoom.mode === "fit" ? AUTOMATIC : WHOLE;
    this.arrange();
    this.remember();
  }

  /**
   * Zooms around a point of the view, by default its center.
   *
   * @param {number} ratio
   * @param {{x: number, y: number}} [point]
   */
  zoomBy(ratio, point) {
    const { geometry: old, view } = this;
    const at = point ?? { x: (view.width + old.left) / 2, y: (view.height + old.top) / 2 };
    const least = old.whole.x / old.automatic.x;
    const most = LARGEST_PITCH / old.automatic.x;
    const factor = Math.min(Math.max(steppedFactor(old, ratio), least), most);
    this.zoom = factor <= least * 1.001 ? WHOLE : { mode: "free", factor };
    const column = (at.x - old.left + view.x) / old.pitchX;
    const row = (at.y - old.top + view.y) / old.pitchY;
    this.arrange();
    const { left, top, pitchX, pitchY } = this.geometry;
    this.scrollTo(column * pitchX - (at.x - left), row * pitchY - (at.y - top));
    this.paint();
    this.remember();
  }

  // Files

  /** @override @param {"png" | "svg"} kind */
  async save(kind) {
    this.notice = kind === "svg" ? refusal(this.model) : null;
    if (!this.notice) return super.save(kind);
    this.say(this.notice);
    return this.mark();
  }

  /** @override @param {"png" | "svg"} kind */
  saved(kind) {
    return savedMatrix(this.picture, kind);
  }
}

export default mounting(".matrix", MatrixView);
