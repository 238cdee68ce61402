// The token map component: a 2-D projection of tokens, layer by layer.

import { CanvasView, leading, within } from "../core/canvas_view.js";
import { element, sizeCanvas } from "../core/dom.js";
import { mounting } from "../core/mount.js";
import { colorsOf } from "../core/scale.js";
import { counted } from "../core/text.js";
import { Dragging } from "./dragging.js";
import { savedMap } from "./file.js";
import { Going, MOVING } from "./going.js";
import { closeUp, mapLayout, pushed, revealing, zoomedBy } from "./layout.js";
import { coloring, found, nextText, pointsOf, sentence, surroundings, unpackMap, whence } from "./model.js";
import { legendEntries, paintLasso, paintMap, paintRing, paintWay } from "./paint.js";
import { legendEntry, mapParts } from "./parts.js";
import { markAt, marksWithin } from "./places.js";
import { Sliding } from "./sliding.js";

/**
 * @typedef {import("./layout.js").MapGeometry} MapGeometry
 * @typedef {import("./layout.js").Panel} Panel
 * @typedef {import("./layout.js").Zoom} Zoom
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Point} Point
 * @typedef {import("./model.js").Shown} Shown
 * @typedef {import("./model.js").Spot} Spot
 */

/** @extends {CanvasView<MapModel, Point, import("./parts.js").MapParts>} */
class LayerMap extends CanvasView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const parts = mapParts(root);
    super(root, parts);
    /** @type {Shown} */
    this.shown = { mode: "layer", layer: 0, by: "word" };
    /** @type {Zoom} */
    this.zoom = null;
    /** @type {Point | null} */
    this.pinned = null;
    /** @type {number[]} */
    this.selected = [];
    this.wanted = "";
    /** @type {number[] | null} */
    this.matches = null;
    /** Positions of the marks during an animation. @type {Float32Array | null} */
    this.moving = null;
    this.telling = 0;
    // Set by the first layout, before anything reads it.
    this.geometry = /** @type {MapGeometry} */ (/** @type {unknown} */ (null));
    this.colors = /** @type {import("./model.js").Coloring} */ (/** @type {unknown} */ (null));
    /** @type {string[]} */
    this.ramp = [];
    /** @type {(name: string, value: unknown) => void} */
    this.report = () => {};
    this.listenToTools();
    this.sliding = new Sliding(parts.base, () => {
      paintMap(this.penFor(parts.base), this.picture);
      this.mark();
    });
    this.going = new Going({
      layer: () => this.shown.layer,
      layerCount: () => this.model.layerCount,
      next: (layer) => this.goToLayer(layer),
      moved: (at) => {
        this.moving = at;
        this.paint();
      },
      changed: () => {
        this.setTools();
        if (!this.going.goes) this.tell();
      },
    });
    this.dragging = new Dragging(parts.stage, {
      may: () => this.shown.mode !== "each",
      draws: () => parts.lasso.getAttribute("aria-pressed") === "true",
      pushed: (right, down) => {
        this.push(right, down);
      },
      drawn: () => {
        this.hovered = null;
        this.mark();
      },
      closed: (line) => this.select(marksWithin(this.model, this.geometry.panels[0], line)),
    });
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue }) {
    this.report = setStateValue;
  }

  /** @override @param {Uint8Array} data */
  take(data) {
    const { model: before } = this;
    this.model = unpackMap(data);
    const { model, known } = this;
    const asked = JSON.stringify(model.start);
    const goesOn = before?.of === model.of && before.began === model.began;
    if (goesOn && JSON.stringify(before.start) === asked) return;
    this.going.stop();
    const same = known?.of === model.of;
    // A different initial state means that the user opened another URL.
    this.shown = same && known.asked === asked ? known.shown : model.start;
    this.zoom = same ? known.zoom : null;
    this.cursor = same ? known.cursor : null;
    this.pinned = same ? known.pinned : null;
    this.selected = same ? known.selected : [];
    this.hovered = null;
    this.matches = found(model, this.wanted);
    // If another page was visible in between, the page has forgotten the selection; after a mere remount it has not.
    if (known?.began !== model.began && (this.pinned || this.selected.length)) this.reportChosen();
  }

  /** @override */
  get kept() {
    const { model, shown, zoom, cursor, pinned, selected } = this;
    const asked = JSON.stringify(model.start);
    return { of: model.of, began: model.began, asked, shown, zoom, cursor, pinned, selected };
  }

  /** @override */
  unlisten() {
    super.unlisten();
    if (this.telling) this.tell(); // a late timer could overwrite the report of a newer view
    this.going.stop();
    this.sliding.stop();
    if (this.telling) this.tell();
  }

  /** @override */
  describe() {
    const { model, parts, theme } = this;
    this.ramp = colorsOf(theme.dark ? model.darkTable : model.lightTable).css;
    parts.stage.setAttribute("aria-label", `${model.caption}. ${counted(model.count)} ${model.what}.`);
    parts.layer.max = String(model.layerCount - 1);
    const part = model.parts.length ? "Part" : "Text";
    const options = { word: model.what === "words" ? "Word" : "Token", layer: "Layer", part };
    const offered = Object.entries(options).filter(([by]) => by !== "part" || this.hasParts);
    parts.by.replaceChildren(
      ...offered.map(([value, name]) => element("option", { value }, `Color: ${name.toLowerCase()}`)),
    );
    parts.variance.textContent = model.variance;
    if (this.shown.by === "part" && !this.hasParts) this.shown = { ...this.shown, by: "word" };
    this.describeShown();
    this.color();
  }

  get hasParts() {
    return this.model.parts.length > 1 || this.model.textCount > 1;
  }

  /** Updates the controls from the state. */
  describeShown() {
    const { model, parts, shown } = this;
    for (const one of parts.modes.children) {
      one.setAttribute("aria-pressed", String(one.getAttribute("data-value") === shown.mode));
    }
    parts.layer.value = String(shown.layer);
    parts.layerText.textContent = `Layer ${shown.layer} of ${model.layerCount - 1}`;
    parts.layer.setAttribute("aria-valuetext", layerName(shown.layer, model.layerCount));
    parts.by.value = shown.by;
  }

  /** Assigns colors to the marks, and updates the legend. */
  color() {
    this.colors = coloring(this.model, this.shown.by, this.ramp);
    const entries = legendEntries(this.colors, this.theme);
    const title = element("li", { class: "title" }, this.colors.title);
    this.parts.legend.replaceChildren(title, ...entries.map(({ label, color }) => legendEntry(label, color)));
  }

  // Size and drawing

  get height() {
    return Math.round(Math.min(Math.max(window.innerHeight * 0.6, 340), 640, Math.max(this.width, 340)));
  }

  /** @override */
  arrange() {
    const { stage, base } = this.parts;
    this.ratio = window.devicePixelRatio || 1;
    this.geometry = mapLayout(this.model, { width: this.width, height: this.height }, this.shown, this.zoom);
    for (const canvas of [base, stage]) sizeCanvas(canvas, this.width, this.geometry.height, this.ratio);
    this.setTools();
    this.paint();
  }

  paint() {
    this.sliding.paint();
  }

  /** Pans the plane. @param {number} right @param {number} down in pixels */
  push(right, down) {
    const [panel] = this.geometry.panels;
    this.hovered = null;
    this.zoom = pushed(panel, this.zoom, right, down);
    this.geometry = mapLayout(this.model, { width: this.width, height: this.height }, this.shown, this.zoom);
    this.setTools();
    this.sliding.push(panel.area, this.ratio, right, down, this.theme.background);
    this.mark();
    this.remember();
  }

  /** @returns {import("./paint.js").MapPicture} */
  get picture() {
    const { model, theme, measure, geometry, colors, moving } = this;
    const { by } = this.shown;
    return { model, theme, measure, geometry, colors, by, emphasised: this.emphasised, moving };
  }

  /** The highlighted marks: search results and selection. */
  get emphasised() {
    const { matches, selected } = this;
    if (!matches && !selected.length) return null;
    return matches ? [...new Set([...selected, ...matches])] : selected;
  }

  setTools() {
    const { parts, shown, zoom } = this;
    const single = shown.mode !== "each";
    parts.out.disabled = !single || !zoom;
    parts.in.disabled = parts.fit.disabled = parts.lasso.disabled = !single;
    parts.fit.title = zoom ? "Show the marks of all layers" : "Zoom to the marks of this layer";
    parts.fit.setAttribute("aria-label", `Fit: ${parts.fit.title}`);
    parts.play.disabled = parts.layer.disabled = shown.mode !== "layer";
    parts.play.setAttribute("aria-pressed", String(this.going.goes));
  }

  /** @override */
  mark() {
    const { active, pinned, theme, picture } = this;
    const pen = this.penFor(this.parts.stage);
    if (pinned && !this.moving) {
      const at = { index: pinned.index, layer: this.shown.layer };
      paintWay(pen, picture, at, true);
      paintRing(pen, picture, at, theme.accent);
    }
    if (active && !this.moving && active.index !== pinned?.index) {
      paintWay(pen, picture, active, false);
      paintRing(pen, picture, active, theme.ink);
    }
    paintLasso(pen, theme, this.dragging.line);
    this.writeReadout(active ?? pinned);
  }

  /** @param {Point | null} point */
  writeReadout(point) {
    const { readout, second } = this.parts;
    second.classList.toggle("quiet", !point);
    if (!point) {
      readout.replaceChildren(this.model.caption);
      second.replaceChildren(this.hint());
      return;
    }
    const { before, after } = surroundings(this.model, point.index);
    const name = element("b", {}, this.model.names[this.model.nameOf[point.index]]);
    const where = element("span", { class: "quiet" }, ` (${whence(this.model, point.index)})`);
    readout.replaceChildren(sentence(this.model, point), where);
    second.replaceChildren(`${before} `, name, ` ${after}`);
  }

  hint() {
    const { matches, selected, model } = this;
    if (matches) return `${counted(matches.length)} of ${counted(model.count)} found; Enter selects them`;
    if (selected.length)
      return `${counted(selected.length)} of ${counted(model.count)} selected; Escape lets go`;
    if (this.shown.mode === "each") return "Point at a mark to see where it is in every layer";
    const way = model.joined ? ", click it for its way through the layers" : "";
    return `Point at a mark${way}; drag to push, draw a lasso to select`;
  }

  // Controls

  listenToTools() {
    const { parts } = this;
    parts.modes.onclick = (event) => {
      const mode = event.target instanceof HTMLElement ? event.target.dataset.value : undefined;
      if (mode === "layer" || mode === "all" || mode === "each") this.show({ mode });
    };
    parts.layer.oninput = () => this.goToLayer(Number(parts.layer.value));
    parts.layer.onchange = () => this.tell();
    parts.by.onchange = () => this.show({ by: /** @type {import("./model.js").By} */ (parts.by.value) });
    parts.play.onclick = () => (this.going.goes ? this.going.stop() : this.going.play());
    parts.search.oninput = () => this.lookFor(parts.search.value);
    parts.search.onkeydown = (event) => {
      if (event.key === "Enter" && this.matches) this.select(this.matches);
    };
    parts.lasso.onclick = () => {
      const pressed = parts.lasso.getAttribute("aria-pressed") === "true";
      parts.lasso.setAttribute("aria-pressed", String(!pressed));
      parts.stage.classList.toggle("lassoing", !pressed);
    };
    parts.lasso.setAttribute("aria-pressed", "false");
    parts.out.onclick = () => this.zoomBy(1 / 1.5);
    parts.in.onclick = () => this.zoomBy(1.5);
    parts.fit.onclick = () => this.fit();
    parts.stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** @param {Partial<Shown>} change */
  show(change) {
    this.going.stop();
    this.shown = { ...this.shown, ...change };
    if (change.mode) this.zoom = null;
    if (change.by) this.color();
    this.hovered = null;
    this.describeShown();
    this.arrange();
    this.tell();
  }

  /** Reports the state, which the page writes into the URL. */
  tell() {
    window.clearTimeout(this.telling);
    this.telling = 0;
    this.remember();
    this.report("shown", { ...this.shown, of: this.model.of });
  }

  /** Reports the state after a pause in keyboard input. */
  tellSoon() {
    window.clearTimeout(this.telling);
    this.telling = window.setTimeout(() => this.tell(), MOVING);
  }

  /** @param {number} goal */
  goToLayer(goal) {
    const layer = within(goal, this.model.layerCount);
    const { layer: before, mode } = this.shown;
    if (layer === before) return;
    this.shown = { ...this.shown, layer };
    this.hovered = null;
    this.describeShown();
    this.remember();
    const from = this.moving?.slice() ?? pointsOf(this.model, before);
    const still = mode !== "layer" || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || !this.model.joined) {
      this.moving = null;
      this.arrange();
    } else {
      const size = { width: this.width, height: this.height };
      this.geometry = mapLayout(this.model, size, this.shown, this.zoom);
      this.going.move(from, pointsOf(this.model, layer));
    }
  }

  /** @param {string} wanted */
  lookFor(wanted) {
    this.wanted = wanted;
    this.matches = found(this.model, wanted);
    this.paint();
    this.say(this.matches ? `${this.matches.length} found` : "");
  }

  /** @param {number[]} marks */
  select(marks) {
    this.selected = marks;
    this.wanted = this.parts.search.value = "";
    this.matches = null;
    this.paint();
    this.say(marks.length ? `${marks.length} selected` : "Nothing is selected");
    this.reportChosen();
  }

  reportChosen() {
    const { of } = this.model;
    this.remember();
    this.report("chosen", { of, pinned: this.pinned?.index ?? null, selected: this.selected });
  }

  // Pointer

  /** @override @param {MouseEvent} event @returns {Point | null} */
  placeUnder(event) {
    const { dragging } = this;
    if (dragging.goes || (event.type === "click" && dragging.moved)) return null;
    return this.moving ? null : markAt(this.model, this.geometry, { x: event.offsetX, y: event.offsetY });
  }

  /** @override @param {Point | null} point */
  pointed(point) {
    this.parts.stage.style.cursor = point ? "pointer" : "";
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey || this.shown.mode === "each") return;
    event.preventDefault(); // otherwise the browser zooms the page
    this.zoomBy(Math.exp(-event.deltaY / 300), { x: event.offsetX, y: event.offsetY });
  }

  /** @param {number} ratio @param {Spot} [about] */
  zoomBy(ratio, about) {
    const [panel] = this.geometry.panels;
    const { x, y, width, height } = panel.area;
    this.setZoom(zoomedBy(panel, this.zoom, ratio, about ?? { x: x + width / 2, y: y + height / 2 }));
  }

  /** Shows everything, or, if everything is visible, zooms to the marks of the current layer. */
  fit() {
    const [panel] = this.geometry.panels;
    this.setZoom(this.zoom ? null : closeUp(this.model, panel, this.zoom, panel.layers));
  }

  /** @param {Zoom} zoom */
  setZoom(zoom) {
    if (this.shown.mode === "each") return;
    this.zoom = zoom;
    this.arrange();
    this.remember();
  }

  // Keyboard

  /** @override @returns {Point} */
  firstPlace() {
    return { index: this.pinned?.index ?? 0, layer: this.shown.layer };
  }

  /** @override @param {string} key @param {Point} from @returns {Point | null} */
  destination(key, { index }) {
    const { model } = this;
    const up = leading({ ArrowUp: 1, ArrowDown: -1 }, key);
    if (up) {
      this.goToLayer(this.shown.layer + up);
      this.tellSoon();
    }
    const goal = leading(
      {
        ArrowUp: index,
        ArrowDown: index,
        ArrowLeft: index - 1,
        ArrowRight: index + 1,
        Home: 0,
        End: model.count - 1,
        PageUp: nextText(model, index, -1),
        PageDown: nextText(model, index, 1),
      },
      key,
    );
    return goal === undefined ? null : { index: within(goal, model.count), layer: this.shown.layer };
  }

  /** @override @param {string} key */
  pressOther(key) {
    if (key === "+" || key === "=") this.zoomBy(1.5);
    else if (key === "-") this.zoomBy(1 / 1.5);
    else if (key === "0") this.fit();
    else if (key.toLowerCase() === "s" && this.cursor) this.toggleSelected(this.cursor.index);
    else return false;
    return true;
  }

  /** @param {number} index */
  toggleSelected(index) {
    const { selected } = this;
    const without = selected.filter((one) => one !== index);
    this.select(without.length < selected.length ? without : [...selected, index].sort((a, b) => a - b));
  }

  /** @override @param {Point} point */
  choose(point) {
    this.cursor = point;
    this.pinned = this.pinned?.index === point.index ? null : point;
    this.mark();
    this.say(this.pinned ? `Chosen: ${sentence(this.model, point)}` : "Nothing is chosen");
    this.reportChosen();
  }

  /** @override */
  letGo() {
    if (this.pinned) {
      this.pinned = null;
      this.mark();
      this.reportChosen();
      return true;
    }
    if (!this.selected.length) return false;
    this.select([]);
    return true;
  }

  /** @override @param {Point} point */
  reveal({ index, layer }) {
    if (this.shown.mode === "each" || !this.zoom) return;
    const at = pointsOf(this.model, layer);
    const [panel] = this.geometry.panels;
    const zoom = revealing(panel, this.zoom, { x: at[2 * index], y: at[2 * index + 1] });
    if (zoom !== this.zoom) this.setZoom(zoom);
  }

  /** @override @param {Point} point */
  said(point) {
    const { before, after } = surroundings(this.model, point.index);
    return `${sentence(this.model, point)}, ${whence(this.model, point.index)}: ${before} | ${after}`;
  }

  // Files

  /** @override */
  saved() {
    const { pinned, shown } = this;
    return savedMap({ ...this.picture, moving: null }, pinned && { index: pinned.index, layer: shown.layer });
  }
}

/** @param {number} layer @param {number} layerCount */
function layerName(layer, layerCount) {
  return layer ? `${layer} of ${layerCount - 1}` : "0, the output of the embeddings";
}

export default mounting(".layer-map", LayerMap);
