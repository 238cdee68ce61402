// What a hand does while it holds the pointer down: it pushes the plane aside, or draws a line around marks.

/** @typedef {import("./model.js").Spot} Spot */

/**
 * What is asked before, and told of it.
 *
 * @typedef {object} Told
 * @property {() => boolean} may whether anything can be dragged now
 * @property {() => boolean} draws whether a line is drawn even without Shift
 * @property {(right: number, down: number) => void} pushed
 * @property {() => void} drawn the line has grown, or is gone
 * @property {(line: Spot[]) => void} closed the line is done
 */

const STILL = 4; // pixels that a hand moves in a click

export class Dragging {
  /** @param {HTMLElement} stage @param {Told} told */
  constructor(stage, told) {
    this.stage = stage;
    this.told = told;
    /** @type {{draws: boolean, last: Spot, line: Spot[]} | null} */
    this.held = null;
    /** Whether it was no click: until the pointer is held down again. */
    this.moved = false;
    stage.addEventListener("pointerdown", (event) => this.grab(event));
    stage.addEventListener("pointermove", (event) => this.drag(event));
    stage.addEventListener("pointerup", () => this.drop());
    stage.addEventListener("pointercancel", () => {
      this.held = null;
      told.drawn();
    });
  }

  /** Whether the pointer is held down and has moved. */
  get goes() {
    return Boolean(this.held) && this.moved;
  }

  /** The line that is being drawn. @returns {Spot[]} */
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
