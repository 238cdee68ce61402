// Base class of the canvas views: size, theme and font, pointer, focus and keyboard, saved state and export.

import { contextOf } from "./dom.js";
import { CanvasPen } from "./pen.js";
import { save } from "./saving.js";
import { fontOf, readTheme, textMeasure } from "./theme.js";

/**
 * The user's settings by key of the view, for the lifetime of the page, so that a remount does not lose them.
 *
 * @type {Map<string, any>}
 */
const memory = new Map();

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
 * @template {Record<string, any>} Place a position of the pointer or the keyboard cursor
 * @template {CanvasParts} Parts
 */
export class CanvasView {
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
    /** Under the pointer. @type {Place | null} */
    this.hovered = null;
    /** The keyboard cursor. @type {Place | null} */
    this.cursor = null;
    /** @type {Uint8Array | null} */
    this.data = null;
    // Set by the first update, before anything reads them.
    this.model = /** @type {Model} */ (/** @type {unknown} */ (null));
    this.theme = /** @type {import("./theme.js").Theme} */ (/** @type {unknown} */ (null));
    this.measure = /** @type {import("./text.js").Measure} */ (/** @type {unknown} */ (null));
    this.resized = new ResizeObserver(() => this.fitToWidth());
    this.redraw = () => this.fitToWidth(true);
    this.listenToStage();
    parts.png.onclick = () => this.save("png");
    parts.svg.onclick = () => this.save("svg");
  }

  // To be overridden by each view

  /** Stores the callbacks to the page. @param {any} _component */
  attach(_component) {}

  /** Reads a new payload into `model`. @param {Uint8Array} _data */
  take(_data) {}

  /** Updates what does not depend on size or pointer. */
  describe() {}

  /** Computes the layout for `width`, and paints. */
  arrange() {}

  /** Paints what depends on pointer, focus and pins. */
  mark() {}

  /** @param {MouseEvent} _event @returns {Place | null} */
  placeUnder(_event) {
    return null;
  }

  /** The initial keyboard cursor. @returns {Place} */
  firstPlace() {
    throw new Error("Not implemented: the initial keyboard cursor.");
  }

  /** The place that a key moves to. @param {string} _key @param {Place} _from @returns {Place | null} */
  destination(_key, _from) {
    return null;
  }

  /** Handles a click on a place, or Enter. @param {Place} _place */
  choose(_place) {}

  /** Handles another key; returns whether it did something. @param {string} _key */
  pressOther(_key) {
    return false;
  }

  /** Removes all pins; returns whether there were any. */
  letGo() {
    return false;
  }

  /** Scrolls a place into view. @param {Place} _place */
  reveal(_place) {}

  /** The text for a place, for a screen reader. @param {Place} _place */
  said(_place) {
    return "";
  }

  /** Updates the cursor and the tooltip. @param {Place | null} _place */
  pointed(_place) {}

  /** The state to keep across remounts. @returns {unknown} */
  get kept() {
    return null;
  }

  /** The picture for a file, or null if there is none. @param {"png" | "svg"} _kind */
  saved(_kind) {
    return /** @type {import("./saving.js").Saved | null} */ (null);
  }

  // Common to all views

  /**
   * Called on every rerun that changed data or theme; returns the clean-up of this call.
   *
   * @param {import("./mount.js").Component<Uint8Array>} component
   */
  update(component) {
    const generation = ++this.generation;
    this.attach(component);
    if (component.data !== this.data) {
      this.data = component.data;
      this.take(component.data);
    }
    const before = this.theme;
    this.theme = readTheme(this.root);
    if (before?.font !== this.theme.font) this.measure = textMeasure(this.theme.font);
    this.describe();
    this.listen();
    this.fitToWidth(true);
    this.awaitFont(generation);
    // Streamlit may run the clean-up of an older call after a newer call: only that of the newest may remove listeners.
    return () => {
      if (generation === this.generation) this.unlisten();
    };
  }

  listen() {
    this.resized.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener twice has no effect
  }

  unlisten() {
    this.resized.disconnect();
    window.removeEventListener("resize", this.redraw);
  }

  /** Measures again once the page's font is loaded. @param {number} generation */
  async awaitFont(generation) {
    const font = fontOf(this.theme.font, 12);
    if (document.fonts.check(font)) return;
    await document.fonts.load(font);
    if (generation !== this.generation) return;
    this.measure = textMeasure(this.theme.font);
    this.fitToWidth(true);
  }

  fitToWidth(force = false) {
    const width = this.root.clientWidth;
    if (!width || (!force && width === this.width)) return; // hidden, for example in a closed tab
    this.width = width;
    this.arrange();
  }

  /** Clears a canvas, and returns a pen in CSS pixels. @param {HTMLCanvasElement} canvas */
  penFor(canvas) {
    const context = contextOf(canvas);
    context.resetTransform();
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.scale(this.ratio, this.ratio);
    return new CanvasPen(context, this.theme.font, this.ratio);
  }

  remember() {
    memory.set(this.model.key, this.kept);
  }

  /** The state stored under the model's key. */
  get known() {
    return memory.get(this.model.key);
  }

  /** @param {string} text */
  say(text) {
    this.parts.live.textContent = text;
  }

  /** The place under the pointer, or else that of the keyboard cursor. */
  get active() {
    return this.hovered ?? (this.focused ? this.cursor : null);
  }

  listenToStage() {
    const { stage } = this.parts;
    stage.onpointermove = (event) => {
      if (event.pointerType !== "touch") this.hover(this.placeUnder(event));
    };
    stage.onpointerleave = () => this.hover(null);
    stage.onclick = (event) => {
      const place = this.placeUnder(event);
      if (place) this.choose(place);
    };
    stage.onkeydown = (event) => this.press(event);
    stage.onfocus = () => this.focusChanged(stage.matches(":focus-visible"));
    stage.onblur = () => this.focusChanged(false);
  }

  /** @param {Place | null} place */
  hover(place) {
    if (samePlace(place, this.hovered)) return;
    this.hovered = place;
    this.pointed(place);
    this.mark();
  }

  /** @param {boolean} focused */
  focusChanged(focused) {
    this.focused = focused;
    if (focused) this.cursor ??= this.firstPlace();
    this.mark();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = this.cursor ?? this.firstPlace();
    const target = this.destination(event.key, cursor);
    if (target) this.moveTo(target);
    else if (event.key === "Enter" || event.key === " ") this.choose(cursor);
    else if (event.key === "Escape") this.escape();
    else if (!this.pressOther(event.key)) return;
    event.preventDefault();
  }

  /** @param {Place} place */
  moveTo(place) {
    this.cursor = place;
    this.hovered = null;
    this.pointed(null);
    this.focused = true;
    this.reveal(place);
    this.remember();
    this.mark();
    this.say(this.said(place));
  }

  escape() {
    this.hovered = null;
    if (this.letGo()) return;
    this.cursor = null;
    this.mark();
  }

  /** @param {"png" | "svg"} kind */
  async save(kind) {
    const saved = this.saved(kind);
    if (saved) await save(saved, kind);
  }
}

/**
 * @param {Record<string, any> | null | undefined} one
 * @param {Record<string, any> | null | undefined} other
 */
export function samePlace(one, other) {
  if (!one || !other) return !one && !other;
  return Object.keys(one).every((name) => one[name] === other[name]);
}

/**
 * Looks up a key in a table, ignoring properties that the table inherits.
 *
 * @template T
 * @param {Record<string, T>} table
 * @param {string} key
 * @returns {T | undefined}
 */
export function leading(table, key) {
  return Object.hasOwn(table, key) ? table[key] : undefined;
}

/**
 * An index clamped to 0 … count − 1.
 *
 * @param {number} index
 * @param {number} count
 */
export function within(index, count) {
  return Math.min(Math.max(index, 0), count - 1);
}

/**
 * The cell that a key moves to in a grid, or null for other keys.
 *
 * @param {string} key
 * @param {{row: number, column: number}} from
 * @param {{rows: number, columns: number, page: number}} size `page`: rows that Page up and Page down move
 */
export function gridDestination(key, { row, column }, { rows, columns, page }) {
  const goal = leading(
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
  return goal ? { row: within(goal[0], rows), column: within(goal[1], columns) } : null;
}
