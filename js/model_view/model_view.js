// The model view component: sortable thumbnails of all heads.

import { CanvasView, moveInGrid } from "../core/canvas_view.js";
import { element, hasPointer, sizeCanvas, togglePopover } from "../core/dom.js";
import { drawLegend, updateLegend } from "../core/legend.js";
import { createMount } from "../core/mount.js";
import { readColors } from "../core/scale.js";
import { exportGrid } from "./file.js";
import {
  arrangeRows,
  computeGridLayout,
  describeBlocks,
  describeHead,
  describeOrder,
  findHead,
  findSlot,
  formatHead,
  getCorner,
  getHead,
  hasMarkedLabels,
  nameHead,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { headImage, paintGrid } from "./paint.js";
import { computePreviewPosition, gridParts, PREVIEW_SIDE } from "./parts.js";

/**
 * @typedef {import("./model.js").GridGeometry} GridGeometry
 * @typedef {import("./model.js").GridModel} GridModel
 * @typedef {import("./model.js").Row} Row
 * @typedef {import("./model.js").Sort} Sort
 * @typedef {import("./model.js").HeadIndex} HeadIndex
 * @typedef {import("./paint.js").GridPicture} GridPicture
 */

/** @typedef {{sort: Sort, cursor: HeadIndex | null}} State */

/** @extends {CanvasView<GridModel, HeadIndex, import("./parts.js").GridParts, GridGeometry, State>} */
class ModelView extends CanvasView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const parts = gridParts(root);
    super(root, parts);
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Sort} */
    this.sort = UNSORTED;
    /** @type {import("../core/scale.js").Colors} */
    this.colors = { css: [], rgba: new Uint32Array(), inks: [] };
    /** @type {(headIndex: HeadIndex) => void} */
    this.onOpen = () => {};
    /** Whether a head can be opened in the head view. */
    this.canOpen = false;
    this.onScroll = () => this.placePreview();
    parts.measure.onchange = () => this.setSort({ measure: parts.measure.value || null });
    parts.byHead.onclick = () => this.setSort({ heads: !this.sort.heads });
    parts.byLayer.onclick = () => this.setSort({ layers: !this.sort.layers });
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setTriggerValue }) {
    this.canOpen = Boolean(setTriggerValue);
    this.onOpen = (headIndex) => setTriggerValue?.("opened", headIndex);
    this.parts.help.textContent = `Arrow keys move between heads${this.canOpen ? "; Enter opens one in the head view" : ""}.`;
  }

  /** @override @param {Uint8Array} data */
  readPayload(data) {
    this.setModel(unpackThumbnails(data));
    const { layerCount, headCount, measures } = this.model;
    const { savedState } = this;
    const { sort, cursor } = savedState ?? { sort: UNSORTED, cursor: null };
    this.sort = sort.measure === null || measures.includes(sort.measure) ? sort : UNSORTED;
    this.cursor = cursor && cursor.layer < layerCount && cursor.head < headCount ? cursor : null;
    this.hovered = null;
    const options = measures.map((name) => element("option", { value: name }, name));
    this.parts.measure.replaceChildren(element("option", { value: "" }, "as in the model"), ...options);
    this.rows = arrangeRows(this.model, this.sort);
  }

  /** @override */
  get state() {
    return { sort: this.sort, cursor: this.cursor };
  }

  /** @override */
  listen() {
    super.listen();
    document.addEventListener("scroll", this.onScroll, true); // capture: Streamlit scrolls an element
  }

  /** @override */
  unlisten() {
    super.unlisten();
    document.removeEventListener("scroll", this.onScroll, true);
  }

  /** @override */
  updateControls() {
    const { model, parts, theme } = this;
    this.colors = readColors(theme.isDark ? model.darkTable : model.lightTable);
    const size = `${model.layerCount} layers, ${model.headCount} heads each.`;
    parts.stage.setAttribute("aria-label", `${model.caption}. ${size}`);
    parts.blocks.textContent = describeBlocks(model);
    parts.preview.axes.textContent = model.axes;
    parts.labeled.hidden = !hasMarkedLabels(model);
    updateLegend(parts, model);
    this.updateTools();
  }

  // Size and drawing

  /** @override */
  layOut() {
    const { stage } = this.parts;
    this.ratio = window.devicePixelRatio || 1;
    this.setGeometry(computeGridLayout(this.model, this.width, this.sort, this.measure));
    const { width, height } = this.geometry;
    sizeCanvas(stage, width, height, this.ratio);
    const pen = this.penFor(stage);
    pen.rectangle(0, 0, width, height, { fill: this.theme.background });
    paintGrid(pen, this.picture);
    drawLegend(this.parts, this.theme, this.colors, this.ratio);
    this.paintOverlay();
  }

  /** @returns {GridPicture} */
  get picture() {
    const { model, theme, colors, rows, sort, geometry } = this;
    return { model, theme, colors, rows, sort, geometry };
  }

  updateTools() {
    const { measure, byHead, byLayer } = this.parts;
    const { sort } = this;
    const sorted = sort.measure !== null;
    measure.value = sort.measure ?? "";
    byHead.setAttribute("aria-pressed", String(sorted && sort.heads));
    byLayer.setAttribute("aria-pressed", String(sorted && sort.layers));
    byHead.disabled = byLayer.disabled = !sorted;
  }

  /** @override */
  paintOverlay() {
    const { outline, readout, preview } = this.parts;
    const { active, geometry, model, sort } = this;
    outline.hidden = !active;
    readout.replaceChildren(...(active ? [formatHead(model, sort, active)] : this.createHint()));
    if (!active) return togglePopover(preview.root, false);
    const { x, y } = getCorner(geometry, findSlot(this.rows, active));
    const side = `${geometry.side}px`;
    Object.assign(outline.style, { left: `${x}px`, top: `${y}px`, width: side, height: side });
    return this.paintPreview(active);
  }

  createHint() {
    let hint = `point at a head to see it larger${this.canOpen ? ", click to open it" : ""}`;
    if (!hasPointer()) hint = `tap a head to ${this.canOpen ? "open it" : "see it larger"}`;
    return [this.model.caption, element("span", { class: "hint" }, ` · ${hint}`)];
  }

  /** @param {HeadIndex} headIndex */
  paintPreview(headIndex) {
    const { root, title, detail, canvas } = this.parts.preview;
    title.textContent = nameHead(headIndex);
    detail.textContent = describeHead(this.model, this.sort, headIndex);
    sizeCanvas(canvas, PREVIEW_SIDE, PREVIEW_SIDE, this.ratio);
    const area = { x: 0, y: 0, width: PREVIEW_SIDE, height: PREVIEW_SIDE };
    this.penFor(canvas).image(headImage(this, headIndex, canvas.width), area);
    togglePopover(root, true);
    this.placePreview();
  }

  placePreview() {
    const { outline, preview } = this.parts;
    if (!preview.root.matches(":popover-open")) return;
    const position = computePreviewPosition(
      outline.getBoundingClientRect(),
      preview.root.getBoundingClientRect(),
    );
    if (position) Object.assign(preview.root.style, { left: `${position.x}px`, top: `${position.y}px` });
    else togglePopover(preview.root, false);
  }

  // Handling of pointer and keyboard

  /** @override @param {MouseEvent} event */
  findPlace(event) {
    return findHead(this.rows, this.geometry, event.offsetX, event.offsetY);
  }

  /** @override */
  getInitialPlace() {
    return getHead(this.rows, { row: 0, column: 0 });
  }

  /** @override @param {HeadIndex | null} headIndex */
  updatePointer(headIndex) {
    this.parts.stage.style.cursor = headIndex ? "pointer" : "default";
  }

  /** @override @param {HeadIndex} headIndex */
  activatePlace(headIndex) {
    this.cursor = headIndex;
    this.remember();
    if (this.canOpen) this.onOpen(headIndex);
    else this.hover(headIndex); // Select on touch, because touch screens have no hovering.
  }

  /** @param {Partial<Sort>} change */
  setSort(change) {
    this.sort = { ...this.sort, ...change };
    this.rows = arrangeRows(this.model, this.sort);
    this.remember();
    this.updateTools();
    this.layOut();
    this.announce(describeOrder(this.sort) || "Layers and heads as in the model");
  }

  /** Removes the highlighting, but keeps the keyboard cursor for the next focus. @override */
  escape() {
    this.setFocused(false);
  }

  /** @override @param {string} key @param {HeadIndex} from @returns {HeadIndex | null} */
  findDestination(key, from) {
    const { layerCount: rows, headCount: columns } = this.model;
    const slot = moveInGrid(key, findSlot(this.rows, from), { rows, columns, page: rows });
    return slot && getHead(this.rows, slot);
  }

  /** @override @param {HeadIndex} headIndex */
  moveTo(headIndex) {
    super.moveTo(headIndex);
    this.parts.outline.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    this.placePreview();
  }

  /** @override @param {HeadIndex} headIndex */
  describePlace(headIndex) {
    return formatHead(this.model, this.sort, headIndex);
  }

  // Export to files

  /** @override */
  createPicture() {
    return exportGrid(this.picture, this.geometry.width, this.measure);
  }
}

export default createMount(".model-view", ModelView);
