// Runs long work in short slices, so that the page can handle input between them.

const SLICE = 4; // duration of a slice in milliseconds

export class SlicedTask {
  /**
   * @param {(run: () => void) => void} schedule runs a function after pending input
   * @param {() => number} now current time in milliseconds
   */
  constructor(schedule = (run) => void setTimeout(run), now = () => performance.now()) {
    this.schedule = schedule;
    this.now = now;
    this.generation = 0;
    this.isRunning = false;
  }

  /**
   * Runs the first slice immediately and the others later. Cancels a task that is still running.
   *
   * @template T
   * @param {Generator<void, T, void>} steps short steps of the work
   * @param {(result: T) => void} onDone
   */
  start(steps, onDone) {
    this.cancel();
    this.isRunning = true;
    const { generation } = this;
    const run = () => {
      if (generation !== this.generation) return;
      const end = this.now() + SLICE;
      do {
        const step = steps.next();
        if (step.done) {
          this.isRunning = false;
          onDone(step.value);
          return;
        }
      } while (this.now() < end);
      this.schedule(run);
    };
    run();
  }

  cancel() {
    this.generation++;
    this.isRunning = false;
  }
}

/**
 * Runs all steps at once, and returns their result.
 *
 * @template T
 * @param {Generator<void, T, void>} steps
 */
export function runAll(steps) {
  for (;;) {
    const step = steps.next();
    if (step.done) return step.value;
  }
}
