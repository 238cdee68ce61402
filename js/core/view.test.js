import assert from "node:assert/strict";
import { test } from "node:test";
import { changed, keep, later, layerWithin, MEAN, newest, resumed, stepped, toggled } from "./view.js";

/** @param {number} revision @param {number} layer @returns {import("./view.js").Shown} */
function shown(revision, layer, of = "text") {
  /** @type {import("./view.js").Head[]} */
  const heads = [MEAN];
  /** @type {import("./view.js").Options} */
  const options = {
    layout: "columns",
    direction: "all",
    specials: true,
    fit: false,
    step: null,
    renormalise: false,
    root: true,
  };
  const pins = { side: /** @type {const} */ ("query"), units: [] };
  const view = { layer, heads, measure: "weights", words: false, residual: 0.5, options, pins };
  return { revision, of, view };
}

test("a slower page does not overwrite what a reader chose meanwhile", () => {
  const first = resumed("slow", shown(7, 1));
  const chosen = changed(changed(first, { layer: 2 }), { layer: 3 });
  assert.deepEqual([chosen.revision, chosen.view.layer], [9, 3]);
  assert.equal(later(chosen, shown(8, 2)), chosen, "the answer to the choice before");
  assert.equal(later(chosen, shown(9, 3)), chosen, "its own");
  const elsewhere = shown(10, 5);
  assert.equal(later(chosen, elsewhere), elsewhere, "what was chosen elsewhere since");
  assert.equal(first.view.layer, 1, "no view is changed in place");
});

test("a view that was replaced reports the choice made in its replacement", () => {
  const before = changed(resumed("replaced", shown(7, 1)), { layer: 2 });
  keep("replaced", before);
  const after = changed(resumed("replaced", shown(7, 1)), { layer: 3 });
  keep("replaced", after);
  assert.equal(newest("replaced", before), after);
  assert.equal(newest("never seen", before), before);
});

test("another text begins with what the page says, and so does the first", () => {
  const other = shown(1, 4, "another");
  assert.equal(later(shown(9, 3), other), other);
  assert.equal(later(null, other), other);
});

test("heads are added, taken away and stepped through; none are the mean", () => {
  assert.deepEqual(toggled([MEAN], 3), [3]);
  assert.deepEqual(toggled([3, 9], 5), [3, 5, 9]);
  assert.deepEqual(toggled([3], 3), [MEAN]);
  assert.deepEqual(stepped([MEAN], -1, 12), [MEAN]);
  assert.deepEqual(stepped([MEAN], 1, 12), [0]);
  assert.deepEqual(stepped([0], -1, 12), [MEAN]);
  assert.deepEqual(stepped([11], 1, 12), [11]);
  assert.deepEqual(stepped([2, 5], 1, 12), [0]);
  assert.deepEqual([layerWithin(0, 6), layerWithin(9, 6), layerWithin(4, 6)], [1, 6, 4]);
});
