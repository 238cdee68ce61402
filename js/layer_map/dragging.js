// Dragging on the map: panning, or drawing a lasso around marks.

/** @typedef {import("./model.js").Spot} Spot */

/**
 * Callbacks.
 *
 * @typedef {object} Told
 * @property {() => boolean} may whether dragging is possible now
 * @property {() => boolean} draws whether a lasso is drawn even without Shift
 * @property {(right: number, down: number) => void} pushed
 * @property {() => void} drawn the lasso has changed
 * @property {(line: Spot[]) => void} closed the lasso is complete
 */

const STILL = 4; // maximum movement of a click, in pixels

export class Dragging {
  /** @param {HTMLElement} stage @param {Told} told */
  constructor(stage, told) {
    this.stage = stage;
    this.told = told;
    /** @type {{draws: boolean, last: Spot, line: Spot[]} | null} */
    this.held = null;
    /** Whether the last press was a drag and not a click. */
    this.moved = false;
    stage.addEventListener("pointerdown", (event) => this.grab(event));
    stage.addEventListener("pointermove", (event) => this.drag(event));
    stage.addEventListener("pointerup", () => this.drop());
    stage.addEventListener("pointercancel", () => {
      this.held = null;
      told.drawn();
    });
  }

  /** Whether a drag is in progress. */
  get goes() {
    return Boolean(this.held) && this.moved;
  }

  /** The current lasso. @returns {Spot[]} */
  get line() {
    return this.held?.draws ? this.held.line : [];
  }

  /** @param {PointerEvent} event */
  grab(event) {
    this.moved = false;
    if (event.button || !this.told.may()) return;
    const at = { x: event.offsetX, y: event.offsetY };
    this.held = { draws: event.shiftKey || this.told.draws(), last: at, line: [at] };
    this.stage.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const { held, told } = this;
    if (!held) return;
    const at = { x: event.offsetX, y: event.offsetY };
    const [first] = held.line;
    if (!this.moved && Math.hypot(at.x - first.x, at.y - first.y) < STILL) return;
    this.moved = true;
    if (held.draws) {
      held.line.push(at);
      told.drawn();
    } else told.pushed(at.x - held.last.x, at.y - held.last.y);
    held.last = at;
  }

  drop() {
    const { line } = this;
    this.held = null;
    if (line.length > 1) this.told.closed(line);
  }
}
