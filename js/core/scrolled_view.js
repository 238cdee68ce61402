// A picture larger than its box: two canvases of the size of the viewport stay in place while the content scrolls.

import { CanvasView } from "./canvas_view.js";
import { element, sizeCanvas, stageCanvas } from "./dom.js";

/**
 * @typedef {object} Geometry
 * @property {number} contentWidth
 * @property {number} contentHeight
 */

/** The elements of a scrolled picture. */
export function scrolledParts() {
  const base = element("canvas", { class: "base", "aria-hidden": "true" });
  const stage = stageCanvas("marks");
  const sticky = element("div", { class: "sticky" }, base, stage);
  const extent = element("div", { class: "extent" }, sticky);
  // Firefox would otherwise add the scroll container to the tab order.
  const scroll = element("div", { class: "scroll", tabindex: "-1" }, extent);
  return { base, stage, sticky, extent, scroll };
}

/** @typedef {ReturnType<typeof scrolledParts>} ScrolledParts */

/**
 * @abstract
 * @template {{key: string}} Model
 * @template {Record<string, any>} Place
 * @template {import("./canvas_view.js").CanvasParts & ScrolledParts} Parts
 * @template {Geometry} G
 * @extends {CanvasView<Model, Place, Parts>}
 */
export class ScrolledView extends CanvasView {
  /**
   * @param {HTMLElement} root
   * @param {Parts} parts
   */
  constructor(root, parts) {
    super(root, parts);
    /** The scroll position to apply after the next layout. @type {{x: number, y: number} | null} */
    this.wantedScroll = null;
    this.painting = 0;
    // Set by the first layout, before anything reads it.
    this.geometry = /** @type {G} */ (/** @type {unknown} */ (null));
    parts.scroll.onscroll = () => this.scrolled();
  }

  /** The maximum height without scrolling. */
  get mostHeight() {
    return 860;
  }

  /** @param {{width: number, height: number}} _box @returns {G} */
  laidOut(_box) {
    throw new Error("Not implemented: the layout of the view.");
  }

  paint() {}

  /** Called after a new layout. @param {boolean} _scrolls */
  arranged(_scrolls) {}

  /** @override */
  arrange() {
    const { parts, mostHeight: height } = this;
    const bar = scrollbarWidth(parts.scroll);
    this.geometry = this.laidOut({ width: this.width, height });
    const tall = this.geometry.contentHeight > height + 1;
    if (tall) this.geometry = this.laidOut({ width: this.width - bar, height });
    const { contentWidth, contentHeight } = this.geometry;
    const wide = contentWidth > this.width - (tall ? bar : 0) + 1;
    parts.scroll.style.overflowX = wide ? "scroll" : "hidden";
    parts.scroll.style.overflowY = tall ? "scroll" : "hidden";
    parts.scroll.style.height = `${Math.min(contentHeight, height) + (wide ? bar : 0)}px`;
    parts.extent.style.width = `${Math.max(contentWidth, 1)}px`;
    parts.extent.style.height = `${contentHeight}px`;
    this.arranged(tall || wide);
    this.restoreScroll();
    this.sizeCanvases();
    this.paint();
  }

  restoreScroll() {
    if (this.wantedScroll) this.scrollTo(this.wantedScroll.x, this.wantedScroll.y);
    this.wantedScroll = null;
  }

  sizeCanvases() {
    const { scroll, sticky, base, stage } = this.parts;
    const [width, height] = [scroll.clientWidth, scroll.clientHeight];
    this.ratio = window.devicePixelRatio || 1;
    Object.assign(sticky.style, { width: `${width}px`, height: `${height}px` });
    for (const canvas of [base, stage]) sizeCanvas(canvas, width, height, this.ratio);
  }

  /** The visible area, in coordinates of the content. */
  get view() {
    const { scrollLeft: x, scrollTop: y, clientWidth: width, clientHeight: height } = this.parts.scroll;
    return { x, y, width, height };
  }

  /** @param {number} left @param {number} top */
  scrollTo(left, top) {
    this.parts.scroll.scrollTo({ left, top, behavior: "instant" });
  }

  scrolled() {
    if (this.painting) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = 0;
      this.hovered = null;
      this.paint();
      this.remember();
    });
  }
}

/** @param {HTMLElement} scroll */
function scrollbarWidth(scroll) {
  scroll.style.overflowY = "scroll";
  return scroll.offsetWidth - scroll.clientWidth;
}
