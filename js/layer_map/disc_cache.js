// Caches the pixels of the token map's marks, which are drawn as discs, until the layout or the colors change.

import { createPixels, drawDiscs } from "../core/discs.js";
import { createDiscs, groupMarks, projectPanel } from "./paint.js";

/**
 * @typedef {import("../core/discs.js").Discs} Discs
 * @typedef {import("../core/pen.js").Pixels} Pixels
 * @typedef {import("./paint.js").MapPicture} MapPicture
 * @typedef {import("./paint.js").DrawnPanel} DrawnPanel
 */

const STEP = 1500; // number of discs per step, which takes about a millisecond
const MIN_DISCS = 2000; // number of discs above which the cache is used

/** Returns whether a picture has so many marks that its pixels should be cached. @param {MapPicture} picture */
export function isDense({ model, geometry, animatedPoints }) {
  const layers = geometry.panels.reduce((sum, panel) => sum + panel.layers.length, 0);
  return !animatedPoints && model.count * layers > MIN_DISCS;
}

export class DiscCache {
  /** @param {MapPicture} picture @param {number} ratio device pixels per CSS pixel */
  constructor(picture, ratio) {
    this.picture = picture;
    this.ratio = ratio;
    this.panels = picture.geometry.panels.map((panel) => new PanelPixels(picture, panel, ratio));
  }

  /** Returns whether the cached pixels are valid for a picture. @param {MapPicture} other @param {number} ratio */
  isFor(other, ratio) {
    const { picture } = this;
    const isSame =
      picture.geometry === other.geometry && picture.colors === other.colors && picture.by === other.by;
    return isSame && picture.theme.background === other.theme.background && ratio === this.ratio;
  }

  /**
   * Draws all panels in steps.
   *
   * @param {ArrayLike<number> | null} highlighted
   * @returns {Generator<void, DrawnPanel[], void>}
   */
  *draw(highlighted) {
    const drawnPanels = [];
    const mask = highlighted && createMask(highlighted, this.picture.model.count);
    for (const panel of this.panels) {
      yield* mask ? panel.highlight(mask) : panel.drawPlain();
      const pixels = /** @type {Pixels} */ (mask ? panel.target : panel.plain?.pixels);
      drawnPanels.push({ points: panel.points, pixels });
    }
    return drawnPanels;
  }

  /**
   * Draws the faded marks in steps. The results of a search are drawn on top of them.
   *
   * @returns {Generator<void, void, void>}
   */
  *prepare() {
    for (const panel of this.panels) yield* panel.drawFaded();
  }
}

/** @typedef {{pixels: Pixels, groups: Discs[], group: number, disc: number}} Drawing pixels, and the next disc to draw */

class PanelPixels {
  /** @param {MapPicture} picture @param {import("./layout.js").Panel} panel @param {number} ratio */
  constructor(picture, panel, ratio) {
    this.picture = picture;
    this.panel = panel;
    this.ratio = ratio;
    this.points = projectPanel(picture, panel);
    this.grouped = groupMarks(picture, panel.layers);
    /** All marks in their colors. @type {Drawing | null} */
    this.plain = null;
    /** All marks faded, on which highlighted marks are drawn. @type {Drawing | null} */
    this.faded = null;
    /** @type {Pixels | null} */
    this.target = null;
  }

  /** @param {"plain" | "faded" | "strong"} style @param {Uint8Array | null} mask */
  createGroups(style, mask = null) {
    return createDiscs(this.picture, this.panel, this.points, this.grouped, style, mask);
  }

  createEmpty() {
    return createPixels(this.panel.area, this.ratio, this.picture.theme.background);
  }

  *drawPlain() {
    this.plain ??= { pixels: this.createEmpty(), groups: this.createGroups("plain"), group: 0, disc: 0 };
    yield* this.continueDrawing(this.plain);
  }

  *drawFaded() {
    this.faded ??= { pixels: this.createEmpty(), groups: this.createGroups("faded"), group: 0, disc: 0 };
    yield* this.continueDrawing(this.faded);
  }

  /** @param {Uint8Array} mask 1 for each highlighted mark */
  *highlight(mask) {
    yield* this.drawFaded();
    const { pixels } = /** @type {Drawing} */ (this.faded);
    this.target ??= { ...pixels, rgba: new Uint32Array(pixels.rgba.length) };
    this.target.rgba.set(pixels.rgba);
    yield;
    const groups = this.createGroups("strong", mask);
    yield;
    yield* this.continueDrawing({ pixels: this.target, groups, group: 0, disc: 0 });
  }

  /** Draws the remaining discs in steps. @param {Drawing} drawing @returns {Generator<void, void, void>} */
  *continueDrawing(drawing) {
    const { pixels, groups } = drawing;
    let budget = STEP;
    while (drawing.group < groups.length) {
      const group = groups[drawing.group];
      const positions = /** @type {Float32Array} */ (group.positions);
      const end = Math.min(drawing.disc + budget, positions.length / 2);
      drawDiscs(
        pixels,
        [{ ...group, positions: positions.subarray(2 * drawing.disc, 2 * end) }],
        this.panel.area,
        this.ratio,
      );
      budget -= end - drawing.disc;
      drawing.disc = end;
      if (2 * end === positions.length) {
        drawing.group++;
        drawing.disc = 0;
      }
      if (budget <= 0) {
        budget = STEP;
        yield;
      }
    }
    drawing.groups = [];
    drawing.group = 0;
  }
}

/** @param {ArrayLike<number>} marks @param {number} count */
function createMask(marks, count) {
  const mask = new Uint8Array(count);
  for (let i = 0; i < marks.length; i++) mask[marks[i]] = 1;
  return mask;
}
