import assert from "node:assert/strict";
import { test } from "node:test";
import { gridDestination, leading, samePlace, within } from "./canvas_view.js";

test("keys lead through a grid and not out of it", () => {
  const size = { rows: 5, columns: 3, page: 2 };
  /** @param {string} key */
  const from = (key) => gridDestination(key, { row: 1, column: 2 }, size);
  assert.deepEqual(from("ArrowLeft"), { row: 1, column: 1 });
  assert.deepEqual(from("ArrowRight"), { row: 1, column: 2 });
  assert.deepEqual(from("PageUp"), { row: 0, column: 2 });
  assert.deepEqual(from("PageDown"), { row: 3, column: 2 });
  assert.deepEqual(from("Home"), { row: 1, column: 0 });
  assert.equal(from("constructor"), null, "a key is looked up among those there are");
});

test("an index stays within what there is, and a key that means nothing leads nowhere", () => {
  assert.deepEqual(
    [-1, 1, 7].map((index) => within(index, 3)),
    [0, 1, 2],
  );
  assert.equal(leading({ Home: 0 }, "Home"), 0);
  assert.equal(leading({ Home: 0 }, "toString"), undefined);
});

test("two places are the same when all of them is", () => {
  assert.equal(samePlace({ row: 1, column: null }, { row: 1, column: null }), true);
  assert.equal(samePlace({ row: 1, column: 2 }, { row: 1, column: null }), false);
  assert.equal(samePlace(null, { row: 1 }), false);
  assert.equal(samePlace(null, null), true);
});
