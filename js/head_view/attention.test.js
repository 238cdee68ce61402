import assert from "node:assert/strict";
import { test } from "node:test";
import { packed } from "../core/testing.js";
import { MEAN } from "../core/view.js";
import { Attention } from "./attention.js";
import { chosenWeights, linesFrom, permitted, specialShares } from "./lines.js";
import { seriesName, unitName, unpackHeads } from "./model.js";
import { shareSentence, specialSentence } from "./sentences.js";

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
  const { lines, share, told, possible, least, capped } = linesFrom(attention, [0], [0, 1], all, 0.5);
  assert.deepEqual(
    lines.map(({ query, key, weight }) => [query, key, weight]),
    [
      [0, 0, 1],
      [1, 0, 0.5],
      [1, 1, 0.5],
    ],
  );
  assert.deepEqual([share, told, possible, least, capped], [1, 1, 3, 0.5, false]);
});

test("without a threshold the strongest lines are drawn that tell half", () => {
  const attention = new Attention(sent());
  const all = permitted(attention.model, { specials: true, direction: "all" });
  // Head 0 gives 1, ½ and ½: the first of them is half of it. Head 1 gives ¼, ¾ and 1: the last is exactly half.
  for (const head of [0, 1]) {
    const { lines, share, told, possible, least } = linesFrom(attention, [head], [0, 1], all, null);
    assert.deepEqual([lines.length, share, told, possible, least], [1, 0.5, 0.5, 3, 1]);
  }
  // Of query 0 alone head 1 gives ¼ and ¾.
  const { lines, told } = linesFrom(attention, [1], [0], all, null);
  assert.deepEqual([lines.length, told], [1, 0.75]);
  // Weights as strong as the last one are not told apart: of ½ and ½ both are drawn.
  assert.equal(linesFrom(attention, [0], [1], all, null).lines.length, 2);
});

test("the strongest lines are those that sorting all weights gives", () => {
  const count = 40;
  let seed = 1;
  const random = () => {
    seed = (seed * 16807) % 2147483647;
    return seed / 2147483647;
  };
  const weights = Float32Array.from({ length: count * count }, () => random() ** 9);
  const arrays = {
    firsts: Uint16Array.from({ length: count }, (_, i) => i),
    segments: new Uint8Array(count),
    specials: new Uint8Array(count),
    weights,
  };
  const texts = Array.from({ length: count }, (_, i) => `t${i}`);
  const described = { heads: [0], texts, tokenCount: count, scaling: 1, full: 1, layers: 1 };
  const attention = new Attention(unpackHeads(packed(described, arrays, { weights: [1, count, count] })));
  const all = permitted(attention.model, { specials: true, direction: "all" });
  const { lines, told } = linesFrom(attention, [0], all.shown, all, null);
  const sorted = [...weights].sort((one, other) => other - one);
  const whole = sorted.reduce((sum, one) => sum + one, 0);
  let [sum, number] = [0, 0];
  while (sum < whole / 2) sum += sorted[number++];
  assert.equal(lines.length, number);
  assert.ok(told >= 0.5 && told - sorted[number - 1] / whole < 0.5, "one fewer would tell less than half");
});

test("what special tokens get is a share of each query's attention", () => {
  const attention = new Attention(worded());
  // Token 0 is special. Query "left" is of two pieces: (0, 1) scores 0, 0, 1 and (1, 1) scores 0, 1, 1.
  const found = specialShares(attention, [0, 0], [1]);
  near([found.get(1) ?? 0], [(1 / 4 + 1 / 5) / 2]);
  const model = { ...worded(), total: "attention" };
  const drawn = {
    ...linesFrom(attention, [0], [1], permitted(model, { specials: false, direction: "all" }), null),
  };
  near([drawn.share], [1 - (1 / 4 + 1 / 5) / 2]);
  assert.equal(
    specialSentence(found),
    " Gray bars: attention on the hidden special tokens, on average 22.5 %.",
  );
  const said = shareSentence(model, { ...drawn, possible: 3, told: 0.52, automatic: true });
  const of = "carrying 77.5 % of the attention of the 1 tokens in view.";
  assert.equal(said, `The strongest 1 of 3 lines (52.0 % of the visible attention), ${of}`);
  const open = shareSentence(model, { ...drawn, possible: 3, told: drawn.share, automatic: true });
  assert.equal(open, `The strongest 1 of 3 lines, ${of}`);
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
