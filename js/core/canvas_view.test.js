import assert from "node:assert/strict";
import { test } from "node:test";
import { clampIndex, isSamePlace, lookUp, moveInGrid } from "./canvas_view.js";

test("keys move within a grid", () => {
  const size = { rows: 5, columns: 3, page: 2 };
  /** @param {string} key */
  const from = (key) => moveInGrid(key, { row: 1, column: 2 }, size);
  assert.deepEqual(from("ArrowLeft"), { row: 1, column: 1 });
  assert.deepEqual(from("ArrowRight"), { row: 1, column: 2 });
  assert.deepEqual(from("PageUp"), { row: 0, column: 2 });
  assert.deepEqual(from("PageDown"), { row: 3, column: 2 });
  assert.deepEqual(from("Home"), { row: 1, column: 0 });
  assert.equal(from("constructor"), null, "inherited properties are ignored");
});

test("an index is clamped, and an unknown key is undefined", () => {
  assert.deepEqual(
    [-1, 1, 7].map((index) => clampIndex(index, 3)),
    [0, 1, 2],
  );
  assert.equal(lookUp({ Home: 0 }, "Home"), 0);
  assert.equal(lookUp({ Home: 0 }, "toString"), undefined);
});

test("two places are the same if all their properties are equal", () => {
  assert.equal(isSamePlace({ row: 1, column: null }, { row: 1, column: null }), true);
  assert.equal(isSamePlace({ row: 1, column: 2 }, { row: 1, column: null }), false);
  assert.equal(isSamePlace(null, { row: 1 }), false);
  assert.equal(isSamePlace(null, null), true);
});
