// What every picture on a canvas has in common: its size, theme and font, pointer, focus and keys, memory and files.

import { contextOf } from "./dom.js";
import { CanvasPen } from "./pen.js";
import { save } from "./saving.js";
import { fontOf, readTheme, textMeasure } from "./theme.js";

/**
 * What a reader set, by the view's key and as long as the page: a remount does not lose it.
 *
 * @type {Map<string, any>}
 */
const memory = new Map();

/**
 * The elements that every view has: the canvas that takes pointer and keys, what a screen reader is told, and the
 * buttons that save.
 *
 * @typedef {object} CanvasParts
 * @property {HTMLCanvasElement} stage
 * @property {HTMLElement} live
 * @property {HTMLButtonElement} png
 * @property {HTMLButtonElement} svg
 */

/**
 * @abstract
 * @template {{key: string}} Model what is drawn
 * @template {Record<string, any>} Place something that pointer and keys can be at
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
    /** Where the keyboard is. @type {Place | null} */
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

  // What a view is; each of these is its own

  /** Keeps how the page is told of what a reader does. @param {any} _component */
  attach(_component) {}

  /** Reads a new payload into `model`. @param {Uint8Array} _data */
  take(_data) {}

  /** Writes what does not depend on size or pointer. */
  describe() {}

  /** Lays everything out for `width`, and paints it. */
  arrange() {}

  /** Draws what depends on pointer, focus and pins. */
  mark() {}

  /** @param {MouseEvent} _event @returns {Place | null} */
  placeUnder(_event) {
    return null;
  }

  /** Where the keyboard begins. @returns {Place} */
  firstPlace() {
    throw new Error("A view says where the keyboard begins.");
  }

  /** Where a key leads to. @param {string} _key @param {Place} _from @returns {Place | null} */
  destination(_key, _from) {
    return null;
  }

  /** A click on a place, or Enter. @param {Place} _place */
  choose(_place) {}

  /** Another key; true when it meant something. @param {string} _key */
  pressOther(_key) {
    return false;
  }

  /** Lets go of what is pinned; false when nothing is. */
  letGo() {
    return false;
  }

  /** Brings a place into view. @param {Place} _place */
  reveal(_place) {}

  /** A place in words, for a screen reader. @param {Place} _place */
  said(_place) {
    return "";
  }

  /** What the pointer looks like, and other changes with it. @param {Place | null} _place */
  pointed(_place) {}

  /** What is to be remembered. @returns {unknown} */
  get kept() {
    return null;
  }

  /** The picture for a file; null where none is made. @param {"png" | "svg"} _kind */
  saved(_kind) {
    return /** @type {import("./saving.js").Saved | null} */ (null);
  }

  // What all views do

  /**
   * Called on every rerun that changed data or theme; returns the clean-up for exactly this call.
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
    // Streamlit may clean up after a superseded call once a newer one has run: only the newest may let go.
    return () => {
      if (generation === this.generation) this.unlisten();
    };
  }

  listen() {
    this.resized.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener again adds nothing
  }

  unlisten() {
    this.resized.disconnect();
    window.removeEventListener("resize", this.redraw);
  }

  /** Widths measured before the page's font had arrived are wrong. @param {number} generation */
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
    if (!width || (!force && width === this.width)) return; // hidden, e.g. in a tab that is not open
    this.width = width;
    this.arrange();
  }

  /** A pen for a canvas whose unit is the CSS pixel, with nothing on it. @param {HTMLCanvasElement} canvas */
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

  /** What was remembered under the model's key. */
  get known() {
    return memory.get(this.model.key);
  }

  /** @param {string} text */
  say(text) {
    this.parts.live.textContent = text;
  }

  /** The place under the pointer, or else under the cursor. */
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
 * A table of keys and where they lead to, looked up by a key that may be anything.
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
 * An index moved into what there is.
 *
 * @param {number} index
 * @param {number} count
 */
export function within(index, count) {
  return Math.min(Math.max(index, 0), count - 1);
}

/**
 * Where a key leads to in a grid; null where it leads nowhere.
 *
 * @param {string} key
 * @param {{row: number, column: number}} from
 * @param {{rows: number, columns: number, page: number}} size `page`: rows that Page up and Page down go
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
