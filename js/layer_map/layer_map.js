// The token map component: a 2-D projection of tokens, layer by layer.

import { CanvasView, clampIndex, lookUp } from "../core/canvas_view.js";
import { element, hasPointer, sizeCanvas } from "../core/dom.js";
import { createMount } from "../core/mount.js";
import { readColors } from "../core/scale.js";
import { runAll, SlicedTask } from "../core/sliced_task.js";
import { formatCount } from "../core/text.js";
import { DURATION, LayerAnimation } from "./animation.js";
import { DiscCache, isDense } from "./disc_cache.js";
import { Dragging } from "./dragging.js";
import { exportMap } from "./file.js";
import { findMark, findMarksWithin } from "./hit_test.js";
import { computeMapLayout, panBy, panToReveal, zoomAround, zoomToLayers } from "./layout.js";
import {
  createColoring,
  describeOrigin,
  describePoint,
  findNextText,
  getContext,
  getPoints,
  unpackMap,
} from "./model.js";
import { createLegendEntries, paintLasso, paintMap, paintRing, paintTrajectory } from "./paint.js";
import { Panning } from "./panning.js";
import { legendEntry, mapParts } from "./parts.js";
import { SearchIndex } from "./search.js";

/**
 * @typedef {import("./layout.js").MapGeometry} MapGeometry
 * @typedef {import("./layout.js").Panel} Panel
 * @typedef {import("./layout.js").Zoom} Zoom
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Point} Point
 * @typedef {import("./model.js").Display} Display
 * @typedef {import("./model.js").Spot} Spot
 */

/**
 * @typedef {object} State
 * @property {string} of hash of the map
 * @property {number} began
 * @property {string} start the initial display as JSON
 * @property {Display} display
 * @property {Zoom} zoom
 * @property {Point | null} cursor
 * @property {Point | null} pinned
 * @property {number[]} selected
 */

/** @extends {CanvasView<MapModel, Point, import("./parts.js").MapParts, MapGeometry, State>} */
class LayerMap extends CanvasView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const parts = mapParts(root);
    super(root, parts);
    /** @type {Display} */
    this.display = { mode: "layer", layer: 0, by: "word" };
    /** @type {Zoom} */
    this.zoom = null;
    /** @type {Point | null} */
    this.pinned = null;
    /** @type {number[]} */
    this.selected = [];
    this.query = "";
    /** The search results, in ascending order. @type {Uint32Array | null} */
    this.matches = null;
    /** @type {SearchIndex | null} */
    this.searchIndex = null;
    /** The highlighted marks: search results and selection, in ascending order. @type {ArrayLike<number> | null} */
    this.highlighted = null;
    /** @type {DiscCache | null} */
    this.discCache = null;
    this.drawing = new SlicedTask();
    /** Positions of the marks during an animation. @type {Float32Array | null} */
    this.animatedPoints = null;
    this.reportTimer = 0;
    /** @type {import("./model.js").Coloring} */
    this.colors = { title: "", entries: [], colorOf: new Int16Array(), hasOthers: false, isRamp: false };
    /** @type {string[]} */
    this.ramp = [];
    /** @type {(name: string, value: unknown) => void} */
    this.setState = () => {};
    this.listenToControls();
    this.panning = new Panning(parts.base, () => {
      paintMap(this.penFor(parts.base), this.drawPicture());
      this.paintOverlay();
    });
    this.animation = new LayerAnimation({
      getLayer: () => this.display.layer,
      getLayerCount: () => this.model.layerCount,
      goToLayer: (layer) => this.goToLayer(layer),
      onMove: (points) => {
        this.animatedPoints = points;
        this.paint();
      },
      onPlaybackChange: () => {
        this.updateTools();
        if (!this.animation.isPlaying) this.reportDisplay();
      },
    });
    this.dragging = new Dragging(parts.stage, {
      canDrag: () => this.display.mode !== "each",
      isLassoMode: () => parts.lasso.getAttribute("aria-pressed") === "true",
      onPan: (right, down) => {
        this.pan(right, down);
      },
      onLassoChange: () => {
        this.hovered = null;
        this.paintOverlay();
      },
      onLassoEnd: (line) => this.setSelected(findMarksWithin(this.model, this.geometry.panels[0], line)),
    });
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue }) {
    this.setState = setStateValue;
  }

  /** @override @param {Uint8Array} data */
  readPayload(data) {
    const previous = this.hasModel ? this.model : null;
    const model = unpackMap(data);
    this.setModel(model);
    const { savedState } = this;
    const start = JSON.stringify(model.start);
    const isSameMount = previous?.of === model.of && previous.began === model.began;
    if (isSameMount && JSON.stringify(previous.start) === start) return;
    this.animation.stop();
    const state = savedState?.of === model.of ? savedState : null;
    // If the initial state differs, the user has opened another URL, so the state in this URL replaces the saved state.
    this.display = state?.start === start ? state.display : model.start;
    this.zoom = state?.zoom ?? null;
    this.cursor = state?.cursor ?? null;
    this.pinned = state?.pinned ?? null;
    this.selected = state?.selected ?? [];
    this.hovered = null;
    this.searchIndex = null;
    this.findMatches(this.query);
    // Report the selection again, because the page loses it while another page is visible.
    if (savedState?.began !== model.began && (this.pinned || this.selected.length)) this.reportSelection();
  }

  /** @override */
  get state() {
    const { model, display, zoom, cursor, pinned, selected } = this;
    const start = JSON.stringify(model.start);
    return { of: model.of, began: model.began, start, display, zoom, cursor, pinned, selected };
  }

  /** @override */
  unlisten() {
    super.unlisten();
    if (this.reportTimer) this.reportDisplay(); // A later report could overwrite the report of a newer view.
    this.animation.stop();
    this.panning.stop();
    this.stopDrawing();
    if (this.reportTimer) this.reportDisplay();
  }

  /** @override */
  updateControls() {
    const { model, parts, theme } = this;
    this.ramp = readColors(theme.isDark ? model.darkTable : model.lightTable).css;
    parts.stage.setAttribute("aria-label", `${model.caption}. ${formatCount(model.count)} ${model.what}.`);
    parts.layer.max = String(model.layerCount - 1);
    const partName = model.parts.length ? "Part" : "Text";
    const options = { word: model.what === "words" ? "Word" : "Token", layer: "Layer", part: partName };
    const available = Object.entries(options).filter(([by]) => by !== "part" || this.hasParts);
    parts.by.replaceChildren(
      ...available.map(([value, name]) => element("option", { value }, `Color: ${name.toLowerCase()}`)),
    );
    parts.variance.textContent = model.variance;
    if (this.display.by === "part" && !this.hasParts) this.display = { ...this.display, by: "word" };
    this.updateDisplayControls();
    this.updateColors();
  }

  get hasParts() {
    return this.model.parts.length > 1 || this.model.textCount > 1;
  }

  /** Updates the controls from the state. */
  updateDisplayControls() {
    const { model, parts, display } = this;
    for (const button of parts.modes.children) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-value") === display.mode));
    }
    parts.layer.value = String(display.layer);
    parts.layerText.textContent = `Layer ${display.layer} of ${model.layerCount - 1}`;
    parts.layer.setAttribute("aria-valuetext", nameLayer(display.layer, model.layerCount));
    parts.by.value = display.by;
  }

  /** Assigns colors to the marks, and updates the legend. */
  updateColors() {
    this.colors = createColoring(this.model, this.display.by, this.ramp);
    const entries = createLegendEntries(this.colors, this.theme);
    const title = element("li", { class: "title" }, this.colors.title);
    this.parts.legend.replaceChildren(title, ...entries.map(({ label, color }) => legendEntry(label, color)));
  }

  // Size and drawing

  get height() {
    return Math.round(Math.min(Math.max(window.innerHeight * 0.6, 340), 640, Math.max(this.width, 340)));
  }

  /** @override */
  layOut() {
    const { stage, base } = this.parts;
    this.ratio = window.devicePixelRatio || 1;
    this.setGeometry(
      computeMapLayout(this.model, { width: this.width, height: this.height }, this.display, this.zoom),
    );
    for (const canvas of [base, stage]) sizeCanvas(canvas, this.width, this.geometry.height, this.ratio);
    this.updateTools();
    this.paint();
  }

  paint() {
    this.stopDrawing();
    this.panning.paint();
  }

  /**
   * Repaints after a change of the highlighted marks. Many marks are painted in slices, to handle the next key soon.
   */
  paintHighlights() {
    const { picture } = this;
    if (!isDense(picture)) {
      this.paint();
      return;
    }
    this.panning.stop();
    this.parts.stage.setAttribute("aria-busy", "true");
    const discs = this.getDiscs(picture);
    this.drawing.start(discs.draw(picture.highlighted), (drawnPanels) => {
      this.stopDrawing();
      if (!discs.isFor(this.picture, this.ratio)) {
        this.paint(); // Discard the result if the user has moved the map in the meantime.
        return;
      }
      paintMap(this.penFor(this.parts.base), { ...picture, drawnPanels });
      this.paintOverlay();
    });
  }

  stopDrawing() {
    this.drawing.cancel();
    this.parts.stage.removeAttribute("aria-busy");
  }

  /**
   * Returns the picture with its discs, which are redrawn if they have changed.
   *
   * @returns {import("./paint.js").MapPicture}
   */
  drawPicture() {
    const { picture } = this;
    if (!isDense(picture)) return picture;
    return { ...picture, drawnPanels: runAll(this.getDiscs(picture).draw(picture.highlighted)) };
  }

  /** @param {import("./paint.js").MapPicture} picture */
  getDiscs(picture) {
    if (!this.discCache?.isFor(picture, this.ratio)) this.discCache = new DiscCache(picture, this.ratio);
    return this.discCache;
  }

  /** Pans the plane. @param {number} right @param {number} down in pixels */
  pan(right, down) {
    const [panel] = this.geometry.panels;
    this.hovered = null;
    this.zoom = panBy(panel, this.zoom, right, down);
    this.setGeometry(
      computeMapLayout(this.model, { width: this.width, height: this.height }, this.display, this.zoom),
    );
    this.updateTools();
    this.panning.pan(panel.area, this.ratio, right, down, this.theme.background);
    this.paintOverlay();
    this.remember();
  }

  /** @returns {import("./paint.js").MapPicture} */
  get picture() {
    const { model, theme, measure, geometry, colors, highlighted, animatedPoints } = this;
    const { by } = this.display;
    return { model, theme, measure, geometry, colors, by, highlighted, animatedPoints };
  }

  updateHighlighted() {
    const { matches, selected } = this;
    if (!selected.length) this.highlighted = matches;
    else if (!matches) this.highlighted = selected;
    else this.highlighted = Uint32Array.from(new Set([...selected, ...matches])).sort();
  }

  updateTools() {
    const { parts, display, zoom } = this;
    const isSingle = display.mode !== "each";
    parts.out.disabled = !isSingle || !zoom;
    parts.in.disabled = parts.fit.disabled = parts.lasso.disabled = !isSingle;
    parts.fit.title = zoom ? "Show the marks of all layers" : "Zoom to the marks of this layer";
    parts.fit.setAttribute("aria-label", `Fit: ${parts.fit.title}`);
    parts.play.disabled = parts.layer.disabled = display.mode !== "layer";
    parts.play.setAttribute("aria-pressed", String(this.animation.isPlaying));
  }

  /** @override */
  paintOverlay() {
    const { active, pinned, theme, picture } = this;
    const pen = this.penFor(this.parts.stage);
    if (pinned && !this.animatedPoints) {
      const point = { index: pinned.index, layer: this.display.layer };
      paintTrajectory(pen, picture, point, true);
      paintRing(pen, picture, point, theme.accent);
    }
    if (active && !this.animatedPoints && active.index !== pinned?.index) {
      paintTrajectory(pen, picture, active, false);
      paintRing(pen, picture, active, theme.ink);
    }
    paintLasso(pen, theme, this.dragging.lasso);
    this.updateReadout(active ?? pinned);
  }

  /** @param {Point | null} point */
  updateReadout(point) {
    const { readout, second } = this.parts;
    second.classList.toggle("quiet", !point);
    if (!point) {
      readout.replaceChildren(this.model.caption);
      second.replaceChildren(this.createHint());
      return;
    }
    const { before, after } = getContext(this.model, point.index);
    const name = element("b", {}, this.model.names[this.model.nameOf[point.index]]);
    const origin = element("span", { class: "quiet" }, ` (${describeOrigin(this.model, point.index)})`);
    readout.replaceChildren(describePoint(this.model, point), origin);
    second.replaceChildren(`${before} `, name, ` ${after}`);
  }

  createHint() {
    const { matches, selected, model } = this;
    if (matches)
      return `${formatCount(matches.length)} of ${formatCount(model.count)} found; Enter selects them`;
    if (selected.length)
      return `${formatCount(selected.length)} of ${formatCount(model.count)} selected; Escape clears the selection`;
    const point = hasPointer() ? "Point at" : "Tap";
    if (this.display.mode === "each") return `${point} a mark to see where it is in every layer`;
    const click = hasPointer() ? ", click it for its trajectory" : " for its trajectory";
    return `${point} a mark${model.joined ? `${click} through the layers` : ""}; drag to pan, draw a lasso to select`;
  }

  // Controls of the map

  listenToControls() {
    const { parts } = this;
    parts.modes.onclick = (event) => {
      const mode = event.target instanceof HTMLElement ? event.target.dataset.value : undefined;
      if (mode === "layer" || mode === "all" || mode === "each") this.setDisplay({ mode });
    };
    parts.layer.oninput = () => this.goToLayer(Number(parts.layer.value));
    parts.layer.onchange = () => this.reportDisplay();
    parts.by.onchange = () =>
      this.setDisplay({ by: /** @type {import("./model.js").By} */ (parts.by.value) });
    parts.play.onclick = () => (this.animation.isPlaying ? this.animation.stop() : this.animation.play());
    parts.search.oninput = () => this.search(parts.search.value);
    parts.search.onkeydown = (event) => {
      if (event.key === "Enter" && this.matches) this.setSelected([...this.matches]);
    };
    // Prepare the faded marks, which are needed as soon as the user types a character.
    parts.search.onfocus = () => {
      const { picture } = this;
      if (this.drawing.isRunning || !isDense(picture)) return;
      this.drawing.start(this.getDiscs(picture).prepare(), () => {});
    };
    parts.lasso.onclick = () => {
      const pressed = parts.lasso.getAttribute("aria-pressed") === "true";
      parts.lasso.setAttribute("aria-pressed", String(!pressed));
      parts.stage.classList.toggle("lassoing", !pressed);
    };
    parts.lasso.setAttribute("aria-pressed", "false");
    parts.out.onclick = () => this.zoomBy(1 / 1.5);
    parts.in.onclick = () => this.zoomBy(1.5);
    parts.fit.onclick = () => this.toggleFit();
    parts.stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** @param {Partial<Display>} change */
  setDisplay(change) {
    this.animation.stop();
    this.display = { ...this.display, ...change };
    if (change.mode) this.zoom = null;
    if (change.by) this.updateColors();
    this.hovered = null;
    this.updateDisplayControls();
    this.layOut();
    this.reportDisplay();
  }

  /** Reports the state, which the page writes into the URL. */
  reportDisplay() {
    window.clearTimeout(this.reportTimer);
    this.reportTimer = 0;
    this.remember();
    this.setState("display", { ...this.display, of: this.model.of });
  }

  /** Reports the state after a pause in keyboard input. */
  scheduleReport() {
    window.clearTimeout(this.reportTimer);
    this.reportTimer = window.setTimeout(() => this.reportDisplay(), DURATION);
  }

  /** @param {number} target */
  goToLayer(target) {
    const layer = clampIndex(target, this.model.layerCount);
    const { layer: before, mode } = this.display;
    if (layer === before) return;
    this.display = { ...this.display, layer };
    this.hovered = null;
    this.updateDisplayControls();
    this.remember();
    const from = this.animatedPoints?.slice() ?? getPoints(this.model, before);
    const isStill = mode !== "layer" || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (isStill || !this.model.joined) {
      this.animatedPoints = null;
      this.layOut();
    } else {
      const size = { width: this.width, height: this.height };
      this.setGeometry(computeMapLayout(this.model, size, this.display, this.zoom));
      this.animation.animate(from, getPoints(this.model, layer));
    }
  }

  /** @param {string} query */
  search(query) {
    this.findMatches(query);
    this.paintHighlights();
    this.announce(this.matches ? `${this.matches.length} found` : "");
  }

  /** @param {string} query */
  findMatches(query) {
    this.query = query;
    this.searchIndex ??= new SearchIndex(this.model);
    this.matches = this.searchIndex.find(query);
    this.updateHighlighted();
  }

  /** @param {number[]} marks */
  setSelected(marks) {
    this.selected = marks;
    this.parts.search.value = "";
    this.findMatches("");
    this.paintHighlights();
    this.announce(marks.length ? `${marks.length} selected` : "Nothing is selected");
    this.reportSelection();
  }

  reportSelection() {
    const { of } = this.model;
    this.remember();
    this.setState("selection", { of, pinned: this.pinned?.index ?? null, selected: this.selected });
  }

  // Pointer events

  /** @override @param {MouseEvent} event @returns {Point | null} */
  findPlace(event) {
    const { dragging } = this;
    if (dragging.isDragging || (event.type === "click" && dragging.hasMoved)) return null;
    return this.animatedPoints
      ? null
      : findMark(this.model, this.geometry, { x: event.offsetX, y: event.offsetY });
  }

  /** @override @param {Point | null} point */
  updatePointer(point) {
    this.parts.stage.style.cursor = point ? "pointer" : "";
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey || this.display.mode === "each") return;
    event.preventDefault(); // Prevent the browser from zooming the page.
    this.zoomBy(Math.exp(-event.deltaY / 300), { x: event.offsetX, y: event.offsetY });
  }

  /** @param {number} ratio @param {Spot} [about] */
  zoomBy(ratio, about) {
    const [panel] = this.geometry.panels;
    const { x, y, width, height } = panel.area;
    this.setZoom(zoomAround(panel, this.zoom, ratio, about ?? { x: x + width / 2, y: y + height / 2 }));
  }

  /** Shows everything, or, if everything is visible, zooms to the marks of the current layer. */
  toggleFit() {
    const [panel] = this.geometry.panels;
    this.setZoom(this.zoom ? null : zoomToLayers(this.model, panel, this.zoom, panel.layers));
  }

  /** @param {Zoom} zoom */
  setZoom(zoom) {
    if (this.display.mode === "each") return;
    this.zoom = zoom;
    this.layOut();
    this.remember();
  }

  // Keyboard events

  /** @override @returns {Point} */
  getInitialPlace() {
    return { index: this.pinned?.index ?? 0, layer: this.display.layer };
  }

  /** @override @param {string} key @param {Point} from @returns {Point | null} */
  findDestination(key, { index }) {
    const { model } = this;
    const up = lookUp({ ArrowUp: 1, ArrowDown: -1 }, key);
    if (up) {
      this.goToLayer(this.display.layer + up);
      this.scheduleReport();
    }
    const target = lookUp(
      {
        ArrowUp: index,
        ArrowDown: index,
        ArrowLeft: index - 1,
        ArrowRight: index + 1,
        Home: 0,
        End: model.count - 1,
        PageUp: findNextText(model, index, -1),
        PageDown: findNextText(model, index, 1),
      },
      key,
    );
    return target === undefined
      ? null
      : { index: clampIndex(target, model.count), layer: this.display.layer };
  }

  /** @override @param {string} key */
  handleOtherKey(key) {
    if (key === "+" || key === "=") this.zoomBy(1.5);
    else if (key === "-") this.zoomBy(1 / 1.5);
    else if (key === "0") this.toggleFit();
    else if (key.toLowerCase() === "s" && this.cursor) this.toggleSelected(this.cursor.index);
    else return false;
    return true;
  }

  /** @param {number} index */
  toggleSelected(index) {
    const { selected } = this;
    const remaining = selected.filter((mark) => mark !== index);
    this.setSelected(
      remaining.length < selected.length ? remaining : [...selected, index].sort((a, b) => a - b),
    );
  }

  /** @override @param {Point} point */
  activatePlace(point) {
    this.cursor = point;
    this.pinned = this.pinned?.index === point.index ? null : point;
    this.paintOverlay();
    this.announce(this.pinned ? `Pinned: ${describePoint(this.model, point)}` : "Nothing is pinned");
    this.reportSelection();
  }

  /** @override */
  clearPins() {
    if (this.pinned) {
      this.pinned = null;
      this.paintOverlay();
      this.reportSelection();
      return true;
    }
    if (!this.selected.length) return false;
    this.setSelected([]);
    return true;
  }

  /** @override @param {Point} point */
  reveal({ index, layer }) {
    if (this.display.mode === "each" || !this.zoom) return;
    const points = getPoints(this.model, layer);
    const [panel] = this.geometry.panels;
    const zoom = panToReveal(panel, this.zoom, { x: points[2 * index], y: points[2 * index + 1] });
    if (zoom !== this.zoom) this.setZoom(zoom);
  }

  /** @override @param {Point} point */
  describePlace(point) {
    const { before, after } = getContext(this.model, point.index);
    return `${describePoint(this.model, point)}, ${describeOrigin(this.model, point.index)}: ${before} | ${after}`;
  }

  // Export to files

  /** @override */
  createPicture() {
    const { pinned, display } = this;
    return exportMap(
      { ...this.picture, animatedPoints: null },
      pinned && { index: pinned.index, layer: display.layer },
    );
  }
}

/** @param {number} layer @param {number} layerCount */
function nameLayer(layer, layerCount) {
  return layer ? `${layer} of ${layerCount - 1}` : "0, the output of the embeddings";
}

export default createMount(".layer-map", LayerMap);
