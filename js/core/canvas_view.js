// Base class of all views that draw on a canvas. It handles size, theme, font, pointer, focus, keyboard, saved state and
// file export.

import { getContext } from "./dom.js";
import { save } from "./export.js";
import { CanvasPen } from "./pen.js";
import { requireValue } from "./require_value.js";
import { createMeasure, formatFont, readTheme } from "./theme.js";

/**
 * The state of each view by its key. It outlives the view, so that a remounted view continues with its state.
 *
 * @type {Map<string, unknown>}
 */
const savedStates = new Map();

/**
 * The elements of every view: the interactive canvas, the live region for screen readers, and the export buttons.
 *
 * @typedef {object} CanvasParts
 * @property {HTMLCanvasElement} stage
 * @property {HTMLElement} live
 * @property {HTMLButtonElement} png
 * @property {HTMLButtonElement} svg
 */

/**
 * @abstract
 * @template {{key: string}} Model the data
 * @template {Record<string, unknown>} Place an item of the picture at which the pointer or the keyboard cursor can be,
 *   such as a cell or a token
 * @template {CanvasParts} Parts
 * @template Geometry the layout
 * @template State the settings that survive a remount
 */
export class CanvasView {
  /** @type {Model | null} */
  #model = null;
  /** @type {Geometry | null} */
  #geometry = null;

  /**
   * @param {HTMLElement} root
   * @param {Parts} parts
   */
  constructor(root, parts) {
    this.root = root;
    this.parts = parts;
    this.generation = 0;
    this.width = 0;
    this.ratio = 1;
    this.focused = false;
    /** The place under the pointer. @type {Place | null} */
    this.hovered = null;
    /** The keyboard cursor. @type {Place | null} */
    this.cursor = null;
    /** @type {Uint8Array | null} */
    this.data = null;
    this.theme = readTheme(root);
    this.measure = createMeasure(this.theme.font);
    this.resizeObserver = new ResizeObserver(() => this.fitToWidth());
    this.redraw = () => this.fitToWidth(true);
    this.listenToStage();
    parts.png.onclick = () => this.save("png");
    parts.svg.onclick = () => this.save("svg");
  }

  // Methods that each view overrides

  /** Stores the callbacks to the page. @param {import("./mount.js").Component<Uint8Array>} _component */
  attach(_component) {}

  /** Reads a new payload into `model`. @param {Uint8Array} _data */
  readPayload(_data) {}

  /** Updates the controls and texts that depend neither on the size nor on the pointer. */
  updateControls() {}

  /** Computes the layout for `width`, and paints. */
  layOut() {}

  /** Paints the marks that depend on pointer, focus and pins. */
  paintOverlay() {}

  /** Returns the place under the mouse pointer, or null. @param {MouseEvent} _event @returns {Place | null} */
  findPlace(_event) {
    return null;
  }

  /** Returns the initial keyboard cursor. @returns {Place} */
  getInitialPlace() {
    throw new Error("Not implemented: the initial keyboard cursor.");
  }

  /**
   * Returns the place to which a key moves the cursor, or null if this key does not move the cursor.
   *
   * @param {string} _key @param {Place} _from @returns {Place | null}
   */
  findDestination(_key, _from) {
    return null;
  }

  /** Handles a click on a place, or Enter. @param {Place} _place */
  activatePlace(_place) {}

  /** Handles a key that the base class does not handle; returns whether it has an effect. @param {string} _key */
  handleOtherKey(_key) {
    return false;
  }

  /** Removes all pins; returns whether there were any. */
  clearPins() {
    return false;
  }

  /** Scrolls a place into view. @param {Place} _place */
  reveal(_place) {}

  /** Returns the description of a place for screen readers. @param {Place} _place */
  describePlace(_place) {
    return "";
  }

  /** Updates the cursor and the tooltip. @param {Place | null} _place */
  updatePointer(_place) {}

  /** The state that survives a remount. @returns {State} */
  get state() {
    throw new Error("Not implemented: the state of the view.");
  }

  /**
   * Returns the picture to save as a file, or null if there is none.
   *
   * @param {"png" | "svg"} _kind
   * @returns {import("./export.js").FilePicture | null}
   */
  createPicture(_kind) {
    return null;
  }

  // Methods that all views share

  get hasModel() {
    return this.#model !== null;
  }

  /** The data, which `readPayload` sets. @returns {Model} */
  get model() {
    return requireValue(this.#model, "model");
  }

  /** @param {Model} model */
  setModel(model) {
    this.#model = model;
  }

  get hasGeometry() {
    return this.#geometry !== null;
  }

  /** The layout, which `layOut` sets. @returns {Geometry} */
  get geometry() {
    return requireValue(this.#geometry, "geometry");
  }

  /** @param {Geometry} geometry */
  setGeometry(geometry) {
    this.#geometry = geometry;
  }

  /**
   * Shows new data or a new theme; Streamlit calls it after each rerun that changed one of them. Returns a clean-up
   * function for this call.
   *
   * @param {import("./mount.js").Component<Uint8Array>} component
   */
  update(component) {
    const generation = ++this.generation;
    this.attach(component);
    if (component.data !== this.data) {
      this.data = component.data;
      this.readPayload(component.data);
    }
    const { font } = this.theme;
    this.theme = readTheme(this.root);
    if (this.theme.font !== font) this.measure = createMeasure(this.theme.font);
    this.updateControls();
    this.listen();
    this.fitToWidth(true);
    this.awaitFont(generation);
    // Streamlit may run the clean-up of an older call after a newer call, so only the newest may remove listeners.
    return () => {
      if (generation === this.generation) this.unlisten();
    };
  }

  listen() {
    this.resizeObserver.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener again has no effect
  }

  unlisten() {
    this.resizeObserver.disconnect();
    window.removeEventListener("resize", this.redraw);
  }

  /** Repeats the layout once the page's font is loaded. @param {number} generation */
  async awaitFont(generation) {
    const font = formatFont(this.theme.font, 12);
    if (document.fonts.check(font)) return;
    await document.fonts.load(font);
    if (generation !== this.generation) return;
    this.measure = createMeasure(this.theme.font);
    this.fitToWidth(true);
  }

  fitToWidth(force = false) {
    const width = this.root.clientWidth;
    if (!width || (!force && width === this.width)) return; // The view may be hidden, for example in a closed tab.
    this.width = width;
    this.layOut();
  }

  /** Clears a canvas, and returns a pen in CSS pixels. @param {HTMLCanvasElement} canvas */
  penFor(canvas) {
    const context = getContext(canvas);
    context.resetTransform();
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.scale(this.ratio, this.ratio);
    return new CanvasPen(context, this.theme.font, this.ratio);
  }

  remember() {
    savedStates.set(this.model.key, this.state);
  }

  /** The state stored under the model's key, if any. */
  get savedState() {
    return /** @type {State | undefined} */ (savedStates.get(this.model.key));
  }

  /** @param {string} text */
  announce(text) {
    this.parts.live.textContent = text;
  }

  /** The place under the pointer or, without one, the keyboard cursor if the view has the focus. */
  get active() {
    return this.hovered ?? (this.focused ? this.cursor : null);
  }

  listenToStage() {
    const { stage } = this.parts;
    stage.onpointermove = (event) => {
      if (event.pointerType !== "touch") this.hover(this.findPlace(event));
    };
    stage.onpointerleave = () => this.hover(null);
    stage.onclick = (event) => {
      const place = this.findPlace(event);
      if (place) this.activatePlace(place);
    };
    stage.onkeydown = (event) => this.handleKey(event);
    stage.onfocus = () => this.setFocused(stage.matches(":focus-visible"));
    stage.onblur = () => this.setFocused(false);
  }

  /** @param {Place | null} place */
  hover(place) {
    if (isSamePlace(place, this.hovered)) return;
    this.hovered = place;
    this.updatePointer(place);
    this.paintOverlay();
  }

  /** @param {boolean} focused */
  setFocused(focused) {
    this.focused = focused;
    if (focused) this.cursor ??= this.getInitialPlace();
    this.paintOverlay();
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = this.cursor ?? this.getInitialPlace();
    const target = this.findDestination(event.key, cursor);
    if (target) this.moveTo(target);
    else if (event.key === "Enter" || event.key === " ") this.activatePlace(cursor);
    else if (event.key === "Escape") this.escape();
    else if (!this.handleOtherKey(event.key)) return;
    event.preventDefault();
  }

  /** @param {Place} place */
  moveTo(place) {
    this.cursor = place;
    this.hovered = null;
    this.updatePointer(null);
    this.focused = true;
    this.reveal(place);
    this.remember();
    this.paintOverlay();
    this.announce(this.describePlace(place));
  }

  escape() {
    this.hovered = null;
    if (this.clearPins()) return;
    this.cursor = null;
    this.paintOverlay();
  }

  /** @param {"png" | "svg"} kind */
  async save(kind) {
    const picture = this.createPicture(kind);
    if (picture) await save(picture, kind);
  }
}

/**
 * Returns whether two places have equal properties; two missing places are equal.
 *
 * @param {Record<string, unknown> | null | undefined} first
 * @param {Record<string, unknown> | null | undefined} second
 */
export function isSamePlace(first, second) {
  if (!first || !second) return !first && !second;
  return Object.keys(first).every((name) => first[name] === second[name]);
}

/**
 * Looks up a key in a table, ignoring properties that the table inherits.
 *
 * @template T
 * @param {Record<string, T>} table
 * @param {string} key
 * @returns {T | undefined}
 */
export function lookUp(table, key) {
  return Object.hasOwn(table, key) ? table[key] : undefined;
}

/**
 * Returns an index clamped to 0 … count − 1.
 *
 * @param {number} index
 * @param {number} count
 */
export function clampIndex(index, count) {
  return Math.min(Math.max(index, 0), count - 1);
}

/**
 * Returns the cell to which a key moves the cursor in a grid, or null if the key does not move the cursor.
 *
 * @param {string} key
 * @param {{row: number, column: number}} from
 * @param {{rows: number, columns: number, page: number}} size `page`: number of rows by which Page up and Page down
 * move the cursor
 */
export function moveInGrid(key, { row, column }, { rows, columns, page }) {
  const target = lookUp(
    {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, columns - 1],
      PageUp: [row - page, column],
      PageDown: [row + page, column],
    },
    key,
  );
  return target ? { row: clampIndex(target[0], rows), column: clampIndex(target[1], columns) } : null;
}
