import assert from "node:assert/strict";
import { test } from "node:test";
import { packed } from "../core/testing.js";
import { MEAN } from "../core/view.js";
import { Attention } from "./attention.js";
import { chosenWeights, linesFrom, permitted } from "./lines.js";
import { seriesName, unitName, unpackHeads } from "./model.js";

const LN2 = Math.log(2);

/**
 * Three tokens, the last two of them one word, and one head of two numbers. With a scaling of ln 2 a score of n
 * weighs 2ⁿ, so that rows can be worked by hand.
 *
 * @param {Record<string, Float32Array | Uint8Array>} more arrays
 */
function worded(more = {}, shapes = {}) {
  const described = { heads: [0], texts: ["we", "left"], tokenCount: 3, scaling: LN2, full: 1, layers: 6 };
  const arrays = {
    firsts: new Uint16Array([0, 1]),
    segments: new Uint8Array([0, 1]),
    specials: new Uint8Array([1, 0]),
    queries: new Float32Array([1, 0, 0, 1, 1, 1]),
    keys: new Float32Array([0, 0, 1, 0, 0, 1]),
    ...more,
  };
  return unpackHeads(packed(described, arrays, { queries: [1, 3, 2], keys: [1, 3, 2], ...shapes }));
}

/** Two heads whose weights were sent: [head, query, key]. */
function sent() {
  const described = { heads: [4, 9], texts: ["a", "b"], tokenCount: 2, scaling: 1, full: 1, layers: 6 };
  const weights = new Float32Array([1, 0, 0.5, 0.5, 0.25, 0.75, 0, 1]);
  const arrays = {
    firsts: new Uint16Array([0, 1]),
    segments: new Uint8Array(2),
    specials: new Uint8Array(2),
    weights,
  };
  return unpackHeads(packed(described, arrays, { weights: [2, 2, 2] }));
}

/** @param {ArrayLike<number> | null} found @param {number[]} expected */
function near(found, expected) {
  assert.ok(found);
  assert.equal(found.length, expected.length);
  expected.forEach((number, i) => {
    assert.ok(Math.abs(found[i] - number) < 1e-6, `${i}: ${found[i]} is not ${number}`);
  });
}

test("a token's row is the softmax of its scores", () => {
  const attention = new Attention(worded());
  // Query 0 is (1, 0), so its scores are 0, 1, 0: weights 1, 2, 1 of 4.
  near(attention.tokenRow(0, 0), [1 / 4, 2 / 4, 1 / 4]);
  // Query 2 is (1, 1): scores 0, 1, 1, weights 1, 2, 2 of 5.
  near(attention.tokenRow(0, 2), [1 / 5, 2 / 5, 2 / 5]);
});

test("pieces of a word are summed as keys and averaged as queries", () => {
  const attention = new Attention(worded());
  near(attention.row(0, 0), [1 / 4, 3 / 4]);
  // Query 1 is (0, 1): weights 1, 1, 2 of 4.
  near(attention.row(0, 1), [(1 / 4 + 1 / 5) / 2, (3 / 4 + 4 / 5) / 2]);
});

test("a key that may not be looked at gets nothing", () => {
  // A bit for each of three keys, from the left: the second is out of sight.
  const attention = new Attention(worded({ mask: new Uint8Array([0b10100000]) }, { mask: [1, 1] }));
  near(attention.tokenRow(0, 0), [1 / 2, 0, 1 / 2]);
});

test("each query may have a mask of its own", () => {
  const mask = new Uint8Array([0b10000000, 0b11000000, 0b11100000]);
  const attention = new Attention(worded({ mask }, { mask: [3, 1] }));
  near(attention.tokenRow(0, 0), [1, 0, 0]);
  near(attention.tokenRow(0, 1), [1 / 2, 1 / 2, 0]);
  near(attention.tokenRow(0, 2), [1 / 5, 2 / 5, 2 / 5]);
});

test("weights are multiplied with lengths where there are some", () => {
  const attention = new Attention(worded({ lengths: new Float32Array([4, 2, 8]) }, { lengths: [1, 3] }));
  near(attention.row(0, 0), [1, 1 + 2]);
});

test("a column is the same numbers, once all rows were gone through", () => {
  const attention = new Attention(worded());
  assert.equal(attention.column(0, 1), null);
  assert.equal(attention.prepare([0], 1000), true);
  for (const key of [0, 1]) {
    near(
      attention.column(0, key),
      [0, 1].map((query) => attention.row(0, query)[key]),
    );
    near(
      attention.column(MEAN, key),
      [0, 1].map((query) => attention.row(MEAN, query)[key]),
    );
  }
});

test("weights that were sent are read, and their mean made", () => {
  const attention = new Attention(sent());
  near(attention.row(1, 0), [0.25, 0.75]);
  near(attention.row(MEAN, 0), [0.625, 0.375]);
  near(attention.column(0, 1), [0, 0.5]);
  near(attention.column(MEAN, 1), [0.375, 0.75]);
});

test("heads and units are named as people count", () => {
  const model = sent();
  assert.equal(seriesName(model, [MEAN]), "mean of 2 heads");
  assert.equal(seriesName(model, [1]), "head 10");
  assert.equal(seriesName(model, [0, 1]), "all heads");
  assert.equal(unitName(worded(), 1), "left (1)");
});

test("lines are those from the threshold on, with the share that they carry", () => {
  const attention = new Attention(sent());
  const all = permitted(attention.model, { specials: true, direction: "all" });
  const { lines, share, step, capped } = linesFrom(attention, [0], [0, 1], all, 0.5);
  assert.deepEqual(
    lines.map(({ query, key, weight }) => [query, key, weight]),
    [
      [0, 0, 1],
      [1, 0, 0.5],
      [1, 1, 0.5],
    ],
  );
  assert.deepEqual([share, step, capped], [1, 0.5, false]);
  assert.equal(linesFrom(attention, [0], [0, 1], all, null).step, 0, "so few are clear without a threshold");
});

test("only what is asked for is shown and joined", () => {
  const model = worded();
  assert.deepEqual(permitted(model, { specials: false, direction: "all" }).shown, [1]);
  const { isSource, isTarget } = permitted(model, { specials: true, direction: "AB" });
  assert.deepEqual([0, 1].map(isSource), [true, false]);
  assert.deepEqual([0, 1].map(isTarget), [false, true]);
});

test("what several units give is added up, and averaged over heads", () => {
  const attention = new Attention(sent());
  const chosen = chosenWeights(attention, [0, 1], "query", [0, 1], [0, 1]);
  assert.ok(chosen);
  near(chosen.parts[0], [1.5, 0.5]);
  near(chosen.parts[1], [0.25, 1.75]);
  near(chosen.mean, [0.875, 1.125]);
  assert.equal(chosen.lines.length, 6, "none for a weight of nothing");
  assert.equal(chosenWeights(new Attention(worded()), [0], "key", [0], [0]), null, "not added up yet");
});
