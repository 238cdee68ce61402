// The model view component: sortable thumbnails of all heads.

import { CanvasView, gridDestination } from "../core/canvas_view.js";
import { element, sizeCanvas, toggle } from "../core/dom.js";
import { drawLegend, writeLegend } from "../core/legend.js";
import { mounting } from "../core/mount.js";
import { colorsOf } from "../core/scale.js";
import { savedGrid } from "./file.js";
import {
  arrangedRows,
  blockSentence,
  cornerOf,
  gridLayout,
  headAt,
  headDetail,
  headName,
  headSentence,
  headUnder,
  marksLabels,
  orderSentence,
  slotOf,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { headImage, paintGrid } from "./paint.js";
import { gridParts, PREVIEW_SIDE, previewPlace } from "./parts.js";

/**
 * @typedef {import("./model.js").GridGeometry} GridGeometry
 * @typedef {import("./model.js").GridModel} GridModel
 * @typedef {import("./model.js").Row} Row
 * @typedef {import("./model.js").Sort} Sort
 * @typedef {import("./model.js").Which} Which
 * @typedef {import("./paint.js").GridPicture} GridPicture
 */

/** @extends {CanvasView<GridModel, Which, import("./parts.js").GridParts>} */
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
    this.colors = { css: [], words: new Uint32Array(), inks: [] };
    // Set by the first layout, before anything reads it.
    this.geometry = /** @type {GridGeometry} */ (/** @type {unknown} */ (null));
    /** @type {(which: Which) => void} */
    this.open = () => {};
    /** Whether a head can be opened in the head view. */
    this.opens = false;
    this.follow = () => this.placePreview();
    parts.measure.onchange = () => this.setSort({ measure: parts.measure.value || null });
    parts.byHead.onclick = () => this.setSort({ heads: !this.sort.heads });
    parts.byLayer.onclick = () => this.setSort({ layers: !this.sort.layers });
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setTriggerValue }) {
    this.opens = Boolean(setTriggerValue);
    this.open = (which) => setTriggerValue?.("opened", which);
    this.parts.help.textContent = `Arrow keys move between heads${this.opens ? "; Enter opens one in the head view" : ""}.`;
  }

  /** @override @param {Uint8Array} data */
  take(data) {
    this.model = unpackThumbnails(data);
    const { layerCount, headCount, measures } = this.model;
    const { known } = this;
    const sorted = known && (known.sort.measure === null || measures.includes(known.sort.measure));
    this.sort = sorted ? known.sort : UNSORTED;
    const fits = known?.cursor && known.cursor.layer < layerCount && known.cursor.head < headCount;
    this.cursor = fits ? known.cursor : null;
    this.hovered = null;
    const options = measures.map((name) => element("option", { value: name }, name));
    this.parts.measure.replaceChildren(element("option", { value: "" }, "as in the model"), ...options);
    this.rows = arrangedRows(this.model, this.sort);
  }

  /** @override */
  get kept() {
    return { sort: this.sort, cursor: this.cursor };
  }

  /** @override */
  listen() {
    super.listen();
    document.addEventListener("scroll", this.follow, true); // Streamlit scrolls a part of the page, not the document
  }

  /** @override */
  unlisten() {
    super.unlisten();
    document.removeEventListener("scroll", this.follow, true);
  }

  /** @override */
  describe() {
    const { model, parts, theme } = this;
    this.colors = colorsOf(theme.dark ? model.darkTable : model.lightTable);
    const size = `${model.layerCount} layers, ${model.headCount} heads each.`;
    parts.stage.setAttribute("aria-label", `${model.caption}. ${size}`);
    parts.blocks.textContent = blockSentence(model);
    parts.preview.axes.textContent = model.axes;
    parts.labelled.hidden = !marksLabels(model);
    writeLegend(parts, model);
    this.setTools();
  }

  // Size and drawing

  /** @override */
  arrange() {
    const { stage } = this.parts;
    this.ratio = window.devicePixelRatio || 1;
    this.geometry = gridLayout(this.model, this.width, this.sort, this.measure);
    const { width, height } = this.geometry;
    sizeCanvas(stage, width, height, this.ratio);
    const pen = this.penFor(stage);
    pen.rectangle(0, 0, width, height, { fill: this.theme.background });
    paintGrid(pen, this.picture);
    drawLegend(this.parts, this.theme, this.colors, this.ratio);
    this.mark();
  }

  /** @returns {GridPicture} */
  get picture() {
    const { model, theme, colors, rows, sort, geometry } = this;
    return { model, theme, colors, rows, sort, geometry };
  }

  setTools() {
    const { measure, byHead, byLayer } = this.parts;
    const { sort } = this;
    const sorted = sort.measure !== null;
    measure.value = sort.measure ?? "";
    byHead.setAttribute("aria-pressed", String(sorted && sort.heads));
    byLayer.setAttribute("aria-pressed", String(sorted && sort.layers));
    byHead.disabled = byLayer.disabled = !sorted;
  }

  /** @override */
  mark() {
    const { outline, readout, preview } = this.parts;
    const { active, geometry, model, sort } = this;
    outline.hidden = !active;
    readout.replaceChildren(...(active ? [headSentence(model, sort, active)] : this.idle()));
    if (!active) return toggle(preview.root, false);
    const { x, y } = cornerOf(geometry, slotOf(this.rows, active));
    const side = `${geometry.side}px`;
    Object.assign(outline.style, { left: `${x}px`, top: `${y}px`, width: side, height: side });
    return this.paintPreview(active);
  }

  idle() {
    const hint = ` · point at a head to see it larger${this.opens ? ", click to open it" : ""}`;
    return [this.model.caption, element("span", { class: "hint" }, hint)];
  }

  /** @param {Which} which */
  paintPreview(which) {
    const { root, title, detail, canvas } = this.parts.preview;
    title.textContent = headName(which);
    detail.textContent = headDetail(this.model, this.sort, which);
    sizeCanvas(canvas, PREVIEW_SIDE, PREVIEW_SIDE, this.ratio);
    const area = { x: 0, y: 0, width: PREVIEW_SIDE, height: PREVIEW_SIDE };
    this.penFor(canvas).image(headImage(this, which, canvas.width), area);
    toggle(root, true);
    this.placePreview();
  }

  placePreview() {
    const { outline, preview } = this.parts;
    if (!preview.root.matches(":popover-open")) return;
    const place = previewPlace(outline.getBoundingClientRect(), preview.root.getBoundingClientRect());
    if (place) Object.assign(preview.root.style, { left: `${place.x}px`, top: `${place.y}px` });
    else toggle(preview.root, false);
  }

  // Interaction

  /** @override @param {MouseEvent} event */
  placeUnder(event) {
    return headUnder(this.rows, this.geometry, event.offsetX, event.offsetY);
  }

  /** @override */
  firstPlace() {
    return headAt(this.rows, { row: 0, column: 0 });
  }

  /** @override @param {Which | null} which */
  pointed(which) {
    this.parts.stage.style.cursor = which ? "pointer" : "default";
  }

  /** @override @param {Which} which */
  choose(which) {
    this.cursor = which;
    this.remember();
    if (this.opens) this.open(which);
    else this.hover(which); // touch screens have no hovering
  }

  /** @param {Partial<Sort>} change */
  setSort(change) {
    this.sort = { ...this.sort, ...change };
    this.rows = arrangedRows(this.model, this.sort);
    this.remember();
    this.setTools();
    this.arrange();
    this.say(orderSentence(this.sort) || "Layers and heads as in the model");
  }

  /** Keeps the keyboard cursor for the next focus. @override */
  escape() {
    this.focusChanged(false);
  }

  /** @override @param {string} key @param {Which} from @returns {Which | null} */
  destination(key, from) {
    const { layerCount: rows, headCount: columns } = this.model;
    const slot = gridDestination(key, slotOf(this.rows, from), { rows, columns, page: rows });
    return slot && headAt(this.rows, slot);
  }

  /** @override @param {Which} which */
  moveTo(which) {
    super.moveTo(which);
    this.parts.outline.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    this.placePreview();
  }

  /** @override @param {Which} which */
  said(which) {
    return headSentence(this.model, this.sort, which);
  }

  // Files

  /** @override */
  saved() {
    return savedGrid(this.picture, this.geometry.width, this.measure);
  }
}

export default mounting(".model-view", ModelView);
