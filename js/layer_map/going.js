// From one layer to the next: marks on their way, and going through all layers by itself.

import { between } from "./model.js";

/**
 * What is asked before, and told of it.
 *
 * @typedef {object} Told
 * @property {(at: Float32Array | null) => void} moved where the marks are; null when they have arrived
 * @property {() => number} layer that is shown
 * @property {(layer: number) => void} next another layer is due
 * @property {() => number} layerCount
 * @property {() => void} changed it goes by itself, or does so no more
 */

export const MOVING = 350; // milliseconds from one layer to the next
const STAYING = 900; // and until the one after it, where all are gone through

export class Going {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    this.frame = 0;
    this.playing = 0;
  }

  /** Whether it goes by itself. */
  get goes() {
    return Boolean(this.playing);
  }

  /** Moves the marks. @param {ArrayLike<number>} from @param {ArrayLike<number>} to */
  move(from, to) {
    cancelAnimationFrame(this.frame);
    const at = new Float32Array(to.length);
    const begun = performance.now();
    const step = (/** @type {number} */ now) => {
      const share = Math.min(Math.max((now - begun) / MOVING, 0), 1);
      between(from, to, share, at);
      this.told.moved(share < 1 ? at : null);
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    step(begun);
  }

  /** Goes through all layers, from the first one when the last is shown. */
  play() {
    const { told } = this;
    const next = () => {
      if (told.layer() === told.layerCount() - 1) this.stop();
      else told.next(told.layer() + 1);
    };
    if (told.layer() === told.layerCount() - 1) told.next(0);
    else next();
    this.playing = window.setInterval(next, STAYING);
    told.changed();
  }

  stop() {
    if (!this.playing) return;
    window.clearInterval(this.playing);
    this.playing = 0;
    this.told.changed();
  }
}
