// Animation between layers, and playback of all layers.

import { between } from "./model.js";

/**
 * Callbacks.
 *
 * @typedef {object} Told
 * @property {(at: Float32Array | null) => void} moved positions of the marks; null at the end of the animation
 * @property {() => number} layer the visible layer
 * @property {(layer: number) => void} next goes to another layer
 * @property {() => number} layerCount
 * @property {() => void} changed playback has started or stopped
 */

export const MOVING = 350; // duration of an animation, in milliseconds
const STAYING = 900; // pause between layers during playback

export class Going {
  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    this.frame = 0;
    this.playing = 0;
  }

  /** Whether playback is running. */
  get goes() {
    return Boolean(this.playing);
  }

  /** Animates the marks. @param {ArrayLike<number>} from @param {ArrayLike<number>} to */
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

  /** Plays all layers, from the first one if the last is visible. */
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
