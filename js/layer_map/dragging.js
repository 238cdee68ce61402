// Dragging on the map: panning, or drawing a lasso around marks.

/** @typedef {import("./model.js").Spot} Spot */

/**
 * Callbacks for dragging.
 *
 * @typedef {object} DragCallbacks
 * @property {() => boolean} canDrag whether dragging is possible now
 * @property {() => boolean} isLassoMode whether a lasso is drawn even without Shift
 * @property {(right: number, down: number) => void} onPan
 * @property {() => void} onLassoChange the lasso has changed
 * @property {(line: Spot[]) => void} onLassoEnd the lasso is complete
 */

const CLICK_DISTANCE = 4; // maximum pointer movement during a click, in pixels

export class Dragging {
  /** @param {HTMLElement} stage @param {DragCallbacks} callbacks */
  constructor(stage, callbacks) {
    this.stage = stage;
    this.callbacks = callbacks;
    /** @type {{isLasso: boolean, last: Spot, line: Spot[]} | null} */
    this.drag = null;
    /** Whether the last press was a drag and not a click. */
    this.hasMoved = false;
    stage.addEventListener("pointerdown", (event) => this.startDrag(event));
    stage.addEventListener("pointermove", (event) => this.continueDrag(event));
    stage.addEventListener("pointerup", () => this.endDrag());
    stage.addEventListener("pointercancel", () => {
      this.drag = null;
      callbacks.onLassoChange();
    });
  }

  /** Whether a drag is in progress. */
  get isDragging() {
    return Boolean(this.drag) && this.hasMoved;
  }

  /** The current lasso. @returns {Spot[]} */
  get lasso() {
    return this.drag?.isLasso ? this.drag.line : [];
  }

  /** @param {PointerEvent} event */
  startDrag(event) {
    const { callbacks, stage } = this;
    this.hasMoved = false;
    if (event.button || !callbacks.canDrag()) return;
    const spot = { x: event.offsetX, y: event.offsetY };
    this.drag = { isLasso: event.shiftKey || callbacks.isLassoMode(), last: spot, line: [spot] };
    stage.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  continueDrag(event) {
    const { drag, callbacks } = this;
    if (!drag) return;
    const spot = { x: event.offsetX, y: event.offsetY };
    const [start] = drag.line;
    if (!this.hasMoved && Math.hypot(spot.x - start.x, spot.y - start.y) < CLICK_DISTANCE) return;
    this.hasMoved = true;
    if (drag.isLasso) {
      drag.line.push(spot);
      callbacks.onLassoChange();
    } else callbacks.onPan(spot.x - drag.last.x, spot.y - drag.last.y);
    drag.last = spot;
  }

  endDrag() {
    const { lasso } = this;
    this.drag = null;
    if (lasso.length > 1) this.callbacks.onLassoEnd(lasso);
  }
}
