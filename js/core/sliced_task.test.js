import assert from "node:assert/strict";
import { test } from "node:test";
import { runAll, SlicedTask } from "./sliced_task.js";

/** Yields steps that each advance a clock by a millisecond. @param {{time: number}} clock @param {number} count */
function* takeSteps(clock, count) {
  for (let step = 0; step < count; step++) {
    clock.time += 1;
    yield;
  }
  return count;
}

test("a task runs in slices, and a newer one cancels it", () => {
  const clock = { time: 0 };
  /** @type {(() => void)[]} */
  const pending = [];
  const task = new SlicedTask(
    (run) => pending.push(run),
    () => clock.time,
  );
  /** @type {number[]} */
  const results = [];
  task.start(takeSteps(clock, 20), (result) => results.push(result));
  assert.equal(clock.time, 4); // a slice takes 4 ms, and each step 1 ms
  task.start(takeSteps(clock, 3), (result) => results.push(result));
  assert.deepEqual(results, [3]);
  assert.ok(!task.isRunning);
  pending.shift()?.(); // the cancelled task does not continue
  assert.equal(clock.time, 7);
  task.start(takeSteps(clock, 14), (result) => results.push(result));
  while (pending.length) pending.shift()?.();
  assert.deepEqual(results, [3, 14]);
  assert.equal(runAll(takeSteps(clock, 5)), 5);
});
