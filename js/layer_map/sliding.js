// Panning of a picture that takes longer to paint than a frame: the existing pixels move along, and the picture is
// painted again as often as there is time, at least when the pointer rests.

const FRAME = 16; // milliseconds
const SHARE = 3; // the picture slides for this multiple of its painting time before it is painted again
const RESTING = 60; // milliseconds without movement after which the pointer rests

export class Sliding {
  /** @param {HTMLCanvasElement} canvas @param {() => void} paint all of the picture */
  constructor(canvas, paint) {
    this.canvas = canvas;
    this.paintAll = paint;
    this.took = 0;
    this.ended = 0;
    this.resting = 0;
    /** The remainder of a slide by whole pixels. */
    this.left = { x: 0, y: 0 };
  }

  paint() {
    window.clearTimeout(this.resting);
    const begun = performance.now();
    this.paintAll();
    this.ended = performance.now();
    this.took = this.ended - begun;
    this.left = { x: 0, y: 0 };
  }

  /**
   * Moves the picture.
   *
   * @param {import("../core/pen.js").Area} area the part of the canvas that moves, in CSS pixels
   * @param {number} ratio pixels in a CSS pixel
   * @param {number} right in CSS pixels
   * @param {number} down
   * @param {string} ground
   */
  push(area, ratio, right, down, ground) {
    if (this.took < FRAME || performance.now() - this.ended > SHARE * this.took) return this.paint();
    const [x, y] = [this.left.x + right * ratio, this.left.y + down * ratio];
    const [dx, dy] = [Math.round(x), Math.round(y)];
    this.left = { x: x - dx, y: y - dy };
    slide(this.canvas, area, ratio, dx, dy, ground);
    window.clearTimeout(this.resting);
    this.resting = window.setTimeout(() => this.paint(), RESTING);
  }

  stop() {
    window.clearTimeout(this.resting);
  }
}

/**
 * Moves the pixels of an area, and leaves the uncovered part empty.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {import("../core/pen.js").Area} area
 * @param {number} ratio
 * @param {number} dx @param {number} dy in pixels of the canvas
 * @param {string} ground
 */
function slide(canvas, area, ratio, dx, dy, ground) {
  const context = canvas.getContext("2d");
  if (!context) return;
  const [x, y, width, height] = [area.x, area.y, area.width, area.height].map((one) =>
    Math.round(one * ratio),
  );
  const edge = Math.ceil(ratio); // the frame does not move
  const inner = [x + edge, y + edge, width - 2 * edge, height - 2 * edge];
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.beginPath();
  context.rect(inner[0], inner[1], inner[2], inner[3]);
  context.clip();
  context.globalCompositeOperation = "copy"; // replaces the pixels below
  context.drawImage(canvas, dx, dy);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = ground;
  context.fillRect(x, y, width, height);
  context.restore();
}
