// Animates the marks of the token map from one layer to another, and plays all layers.

import { interpolate } from "./model.js";

/**
 * Callbacks of the animation.
 *
 * @typedef {object} AnimationCallbacks
 * @property {(at: Float32Array | null) => void} onMove positions of the marks; null at the end of the animation
 * @property {() => number} getLayer the visible layer
 * @property {(layer: number) => void} goToLayer goes to another layer
 * @property {() => number} getLayerCount
 * @property {() => void} onPlaybackChange playback has started or stopped
 */

export const DURATION = 350; // duration of an animation, in milliseconds
const PAUSE = 900; // pause between layers during playback

export class LayerAnimation {
  /** @param {AnimationCallbacks} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    this.frame = 0;
    this.interval = 0;
  }

  /** Whether playback is running. */
  get isPlaying() {
    return Boolean(this.interval);
  }

  /**
   * Animates the marks from one set of positions to another.
   *
   * @param {ArrayLike<number>} from @param {ArrayLike<number>} to
   */
  animate(from, to) {
    cancelAnimationFrame(this.frame);
    const points = new Float32Array(to.length);
    const startTime = performance.now();
    const step = (/** @type {number} */ now) => {
      const share = Math.min(Math.max((now - startTime) / DURATION, 0), 1);
      interpolate(from, to, share, points);
      this.callbacks.onMove(share < 1 ? points : null);
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    step(startTime);
  }

  /** Plays all layers, from the first one if the last is visible. */
  play() {
    const { callbacks } = this;
    const next = () => {
      if (callbacks.getLayer() === callbacks.getLayerCount() - 1) this.stop();
      else callbacks.goToLayer(callbacks.getLayer() + 1);
    };
    if (callbacks.getLayer() === callbacks.getLayerCount() - 1) callbacks.goToLayer(0);
    else next();
    this.interval = window.setInterval(next, PAUSE);
    callbacks.onPlaybackChange();
  }

  stop() {
    if (!this.interval) return;
    window.clearInterval(this.interval);
    this.interval = 0;
    this.callbacks.onPlaybackChange();
  }
}
