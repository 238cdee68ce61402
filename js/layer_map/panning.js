// Panning of a picture whose painting takes longer than a frame. The existing pixels are moved immediately. The picture
// is painted again when there is time, at the latest when the pointer rests.

const FRAME = 16; // duration of a frame in milliseconds
const REPAINT_AFTER = 3; // between two repaints, pixels are moved for this multiple of the time of a repaint
const REST = 60; // milliseconds without movement after which the pointer is at rest

export class Panning {
  /** @param {HTMLCanvasElement} canvas @param {() => void} paint paints the whole picture */
  constructor(canvas, paint) {
    this.canvas = canvas;
    this.paintAll = paint;
    this.paintTime = 0;
    this.paintedAt = 0;
    this.restTimer = 0;
    /** The part of the movement that is smaller than a pixel and not yet applied. */
    this.remainder = { x: 0, y: 0 };
  }

  paint() {
    window.clearTimeout(this.restTimer);
    const startTime = performance.now();
    this.paintAll();
    this.paintedAt = performance.now();
    this.paintTime = this.paintedAt - startTime;
    this.remainder = { x: 0, y: 0 };
  }

  /**
   * Moves the picture.
   *
   * @param {import("../core/pen.js").Area} area the part of the canvas that moves, in CSS pixels
   * @param {number} ratio device pixels per CSS pixel
   * @param {number} right in CSS pixels
   * @param {number} down
   * @param {string} background
   */
  pan(area, ratio, right, down, background) {
    if (this.paintTime < FRAME || performance.now() - this.paintedAt > REPAINT_AFTER * this.paintTime)
      return this.paint();
    const [x, y] = [this.remainder.x + right * ratio, this.remainder.y + down * ratio];
    const [dx, dy] = [Math.round(x), Math.round(y)];
    this.remainder = { x: x - dx, y: y - dy };
    shiftPixels(this.canvas, area, ratio, dx, dy, background);
    window.clearTimeout(this.restTimer);
    this.restTimer = window.setTimeout(() => this.paint(), REST);
  }

  stop() {
    window.clearTimeout(this.restTimer);
  }
}

/**
 * Moves the pixels of an area, and leaves the uncovered part empty.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {import("../core/pen.js").Area} area
 * @param {number} ratio
 * @param {number} dx @param {number} dy in pixels of the canvas
 * @param {string} background
 */
function shiftPixels(canvas, area, ratio, dx, dy, background) {
  const context = canvas.getContext("2d");
  if (!context) return;
  const [x, y, width, height] = [area.x, area.y, area.width, area.height].map((length) =>
    Math.round(length * ratio),
  );
  const edge = Math.ceil(ratio); // Exclude the frame of the area, because the frame does not move.
  const inner = [x + edge, y + edge, width - 2 * edge, height - 2 * edge];
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.beginPath();
  context.rect(inner[0], inner[1], inner[2], inner[3]);
  context.clip();
  context.globalCompositeOperation = "copy"; // The moved pixels replace existing pixels and are not blended with them.
  context.drawImage(canvas, dx, dy);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = background;
  context.fillRect(x, y, width, height);
  context.restore();
}
