import assert from "node:assert/strict";
import { test } from "node:test";
import {
  applyChange,
  clampLayer,
  getLatestSelection,
  MEAN,
  pickNewer,
  rememberSelection,
  resumeSelection,
  stepHead,
  toggleHead,
} from "./selection.js";

/** @param {number} revision @param {number} layer @returns {import("./selection.js").VersionedSelection} */
function createVersioned(revision, layer, of = "text") {
  /** @type {import("./selection.js").Head[]} */
  const heads = [MEAN];
  /** @type {import("./selection.js").Options} */
  const options = {
    layout: "columns",
    direction: "all",
    specials: true,
    fit: false,
    step: null,
    renormalize: false,
    root: true,
  };
  const pins = { side: /** @type {const} */ ("query"), units: [] };
  const value = { layer, heads, measure: "weights", words: false, residual: 0.5, options, pins };
  return { revision, of, value };
}

test("an outdated page does not overwrite a newer selection", () => {
  const first = resumeSelection("slow", createVersioned(7, 1));
  const changed = applyChange(applyChange(first, { layer: 2 }), { layer: 3 });
  assert.deepEqual([changed.revision, changed.value.layer], [9, 3]);
  assert.equal(pickNewer(changed, createVersioned(8, 2)), changed, "the response to the previous selection");
  assert.equal(pickNewer(changed, createVersioned(9, 3)), changed, "its own selection");
  const elsewhere = createVersioned(10, 5);
  assert.equal(pickNewer(changed, elsewhere), elsewhere, "a newer selection of the page");
  assert.equal(first.value.layer, 1, "a selection is not changed in place");
});

test("a replaced view reports the selection of its replacement", () => {
  const before = applyChange(resumeSelection("replaced", createVersioned(7, 1)), { layer: 2 });
  rememberSelection("replaced", before);
  const after = applyChange(resumeSelection("replaced", createVersioned(7, 1)), { layer: 3 });
  rememberSelection("replaced", after);
  assert.equal(getLatestSelection("replaced", before), after);
  assert.equal(getLatestSelection("never seen", before), before);
});

test("a new text starts with the selection of the page", () => {
  const other = createVersioned(1, 4, "another");
  assert.equal(pickNewer(createVersioned(9, 3), other), other);
  assert.equal(pickNewer(null, other), other);
});

test("heads are added, removed and stepped through; no head means the mean", () => {
  assert.deepEqual(toggleHead([MEAN], 3), [3]);
  assert.deepEqual(toggleHead([3, 9], 5), [3, 5, 9]);
  assert.deepEqual(toggleHead([3], 3), [MEAN]);
  assert.deepEqual(stepHead([MEAN], -1, 12), [MEAN]);
  assert.deepEqual(stepHead([MEAN], 1, 12), [0]);
  assert.deepEqual(stepHead([0], -1, 12), [MEAN]);
  assert.deepEqual(stepHead([11], 1, 12), [11]);
  assert.deepEqual(stepHead([2, 5], 1, 12), [0]);
  assert.deepEqual([clampLayer(0, 6), clampLayer(9, 6), clampLayer(4, 6)], [1, 6, 4]);
});
