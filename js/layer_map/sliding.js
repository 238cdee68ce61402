// A picture that takes longer to paint than a frame lasts slides along while it is pushed, and is painted as often as
// there is time: at least once where the hand rests, so that nothing is left out for longer than a moment.

const FRAME = 16; // milliseconds
const SHARE = 3; // times as long as painting takes the picture slides, before it is painted again
const RESTING = 60; // milliseconds after which a hand rests

export class Sliding {
  /** @param {HTMLCanvasElement} canvas @param {() => void} paint all of the picture */
  constructor(canvas, paint) {
    this.canvas = canvas;
    this.paintAll = paint;
    this.took = 0;
    this.ended = 0;
    this.resting = 0;
    /** What a slide by whole pixels has left over. */
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
   * The picture has been pushed.
   *
   * @param {import("../core/pen.js").Area} area what of the canvas moves, in CSS pixels
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
 * Moves what is on an area of a canvas, and leaves the ground where nothing comes from.
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
  const edge = Math.ceil(ratio); // the frame stays
  const inner = [x + edge, y + edge, width - 2 * edge, height - 2 * edge];
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.beginPath();
  context.rect(inner[0], inner[1], inner[2], inner[3]);
  context.clip();
  context.globalCompositeOperation = "copy"; // of what lies under itself nothing shows through
  context.drawImage(canvas, dx, dy);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = ground;
  context.fillRect(x, y, width, height);
  context.restore();
}
