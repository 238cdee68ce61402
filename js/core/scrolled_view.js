// Base class of views that scroll a large picture. Its two canvases are as large as the viewport and stay in place, and
// only the visible area of the picture is painted.

import { CanvasView } from "./canvas_view.js";
import { element, sizeCanvas, stageCanvas } from "./dom.js";

/**
 * @typedef {object} ScrolledGeometry
 * @property {number} contentWidth
 * @property {number} contentHeight
 */

/** Returns the elements of a scrolled picture. */
export function scrolledParts() {
  const base = element("canvas", { class: "base", "aria-hidden": "true" });
  const stage = stageCanvas("marks");
  const sticky = element("div", { class: "sticky" }, base, stage);
  const extent = element("div", { class: "extent" }, sticky);
  // Set tabIndex, because Firefox would otherwise add the scroll container to the tab order.
  const scroll = element("div", { class: "scroll", tabindex: "-1" }, extent);
  return { base, stage, sticky, extent, scroll };
}

/** @typedef {ReturnType<typeof scrolledParts>} ScrolledParts */

/**
 * @abstract
 * @template {{key: string}} Model
 * @template {Record<string, unknown>} Place
 * @template {import("./canvas_view.js").CanvasParts & ScrolledParts} Parts
 * @template {ScrolledGeometry} Geometry
 * @template State
 * @extends {CanvasView<Model, Place, Parts, Geometry, State>}
 */
export class ScrolledView extends CanvasView {
  /**
   * @param {HTMLElement} root
   * @param {Parts} parts
   */
  constructor(root, parts) {
    super(root, parts);
    /** The scroll position to apply after the next layout. @type {{x: number, y: number} | null} */
    this.pendingScroll = null;
    this.paintRequest = 0;
    parts.scroll.onscroll = () => this.handleScroll();
  }

  /** The height above which the view scrolls vertically, in CSS pixels. */
  get maxHeight() {
    return 860;
  }

  /** @param {{width: number, height: number}} _box @returns {Geometry} */
  computeLayout(_box) {
    throw new Error("Not implemented: the layout of the view.");
  }

  paint() {}

  /** @override */
  layOut() {
    const { parts, maxHeight: height } = this;
    const scrollbar = scrollbarWidth(parts.scroll);
    this.setGeometry(this.computeLayout({ width: this.width, height }));
    const isTall = this.geometry.contentHeight > height + 1;
    if (isTall) this.setGeometry(this.computeLayout({ width: this.width - scrollbar, height }));
    const { contentWidth, contentHeight } = this.geometry;
    const isWide = contentWidth > this.width - (isTall ? scrollbar : 0) + 1;
    parts.scroll.style.overflowX = isWide ? "scroll" : "hidden";
    parts.scroll.style.overflowY = isTall ? "scroll" : "hidden";
    parts.scroll.style.height = `${Math.min(contentHeight, height) + (isWide ? scrollbar : 0)}px`;
    parts.extent.style.width = `${Math.max(contentWidth, 1)}px`;
    parts.extent.style.height = `${contentHeight}px`;
    this.restoreScroll();
    this.sizeCanvases();
    this.paint();
  }

  restoreScroll() {
    if (this.pendingScroll) this.scrollTo(this.pendingScroll.x, this.pendingScroll.y);
    this.pendingScroll = null;
  }

  sizeCanvases() {
    const { scroll, sticky, base, stage } = this.parts;
    const [width, height] = [scroll.clientWidth, scroll.clientHeight];
    this.ratio = window.devicePixelRatio || 1;
    Object.assign(sticky.style, { width: `${width}px`, height: `${height}px` });
    for (const canvas of [base, stage]) sizeCanvas(canvas, width, height, this.ratio);
  }

  /** The visible area, in coordinates of the content. */
  get viewport() {
    const { scrollLeft: x, scrollTop: y, clientWidth: width, clientHeight: height } = this.parts.scroll;
    return { x, y, width, height };
  }

  /** @param {number} left @param {number} top */
  scrollTo(left, top) {
    this.parts.scroll.scrollTo({ left, top, behavior: "instant" });
  }

  handleScroll() {
    if (this.paintRequest) return;
    this.paintRequest = requestAnimationFrame(() => {
      this.paintRequest = 0;
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
