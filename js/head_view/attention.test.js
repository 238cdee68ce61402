import assert from "node:assert/strict";
import { test } from "node:test";
import { packPayload } from "../core/payload.js";
import { MEAN } from "../core/selection.js";
import { Attention } from "./attention.js";
import { computeSpecialShares, createLineFilter, selectLines, sumActiveWeights } from "./lines.js";
import { nameSeries, nameUnit, unpackHeads } from "./model.js";
import { describeLines, describeSpecials } from "./sentences.js";

const LN2 = Math.log(2);

/**
 * Returns a model of three tokens, the last two of which form a word, and one head of two dimensions. The scaling is
 * ln 2, so that a dot product of n gives a weight proportional to 2ⁿ, which is easy to compute by hand.
 *
 * @param {Record<string, Float32Array | Uint8Array>} more additional or replaced arrays of the payload, by name
 */
function createModel(more = {}, shapes = {}) {
  const described = { heads: [0], texts: ["we", "left"], tokenCount: 3, scaling: LN2, full: 1, layers: 6 };
  const arrays = {
    firsts: new Uint16Array([0, 1]),
    segments: new Uint8Array([0, 1]),
    specials: new Uint8Array([1, 0]),
    queries: new Float32Array([1, 0, 0, 1, 1, 1]),
    keys: new Float32Array([0, 0, 1, 0, 0, 1]),
    ...more,
  };
  return unpackHeads(packPayload(described, arrays, { queries: [1, 3, 2], keys: [1, 3, 2], ...shapes }));
}

/** Returns a model of two heads with the given weights, [head, query, key]. */
function createReceivedModel() {
  const described = { heads: [4, 9], texts: ["a", "b"], tokenCount: 2, scaling: 1, full: 1, layers: 6 };
  const weights = new Float32Array([1, 0, 0.5, 0.5, 0.25, 0.75, 0, 1]);
  const arrays = {
    firsts: new Uint16Array([0, 1]),
    segments: new Uint8Array(2),
    specials: new Uint8Array(2),
    weights,
  };
  return unpackHeads(packPayload(described, arrays, { weights: [2, 2, 2] }));
}

/** @param {ArrayLike<number> | null} actual @param {number[]} expected */
function assertNear(actual, expected) {
  assert.ok(actual);
  assert.equal(actual.length, expected.length);
  expected.forEach((number, i) => {
    assert.ok(Math.abs(actual[i] - number) < 1e-6, `${i}: ${actual[i]} is not ${number}`);
  });
}

test("a token's row is the softmax of its scores", () => {
  const attention = new Attention(createModel());
  // Query 0 is (1, 0), so its scores are 0, 1, 0, and its weights are 1/4, 2/4, 1/4.
  assertNear(attention.computeTokenRow(0, 0), [1 / 4, 2 / 4, 1 / 4]);
  // Query 2 is (1, 1), so its scores are 0, 1, 1, and its weights are 1/5, 2/5, 2/5.
  assertNear(attention.computeTokenRow(0, 2), [1 / 5, 2 / 5, 2 / 5]);
});

test("the tokens of a word are summed as keys and averaged as queries", () => {
  const attention = new Attention(createModel());
  assertNear(attention.getRow(0, 0), [1 / 4, 3 / 4]);
  // Query 1 is (0, 1), so its weights are 1/4, 1/4, 2/4.
  assertNear(attention.getRow(0, 1), [(1 / 4 + 1 / 5) / 2, (3 / 4 + 4 / 5) / 2]);
});

test("a masked key gets no attention", () => {
  // The bits of the mask represent the three keys from left to right. The second key is masked.
  const attention = new Attention(createModel({ mask: new Uint8Array([0b10100000]) }, { mask: [1, 1] }));
  assertNear(attention.computeTokenRow(0, 0), [1 / 2, 0, 1 / 2]);
});

test("each query can have its own mask", () => {
  const mask = new Uint8Array([0b10000000, 0b11000000, 0b11100000]);
  const attention = new Attention(createModel({ mask }, { mask: [3, 1] }));
  assertNear(attention.computeTokenRow(0, 0), [1, 0, 0]);
  assertNear(attention.computeTokenRow(0, 1), [1 / 2, 1 / 2, 0]);
  assertNear(attention.computeTokenRow(0, 2), [1 / 5, 2 / 5, 2 / 5]);
});

test("weights are multiplied by lengths if the payload contains them", () => {
  const attention = new Attention(createModel({ lengths: new Float32Array([4, 2, 8]) }, { lengths: [1, 3] }));
  assertNear(attention.getRow(0, 0), [1, 1 + 2]);
});

test("a column equals the rows, after all rows have been computed", () => {
  const attention = new Attention(createModel());
  assert.equal(attention.getColumn(0, 1), null);
  assert.equal(attention.prepareColumns([0], 1000), true);
  for (const key of [0, 1]) {
    assertNear(
      attention.getColumn(0, key),
      [0, 1].map((query) => attention.getRow(0, query)[key]),
    );
    assertNear(
      attention.getColumn(MEAN, key),
      [0, 1].map((query) => attention.getRow(MEAN, query)[key]),
    );
  }
});

test("received weights are read and averaged over the heads", () => {
  const attention = new Attention(createReceivedModel());
  assertNear(attention.getRow(1, 0), [0.25, 0.75]);
  assertNear(attention.getRow(MEAN, 0), [0.625, 0.375]);
  assertNear(attention.getColumn(0, 1), [0, 0.5]);
  assertNear(attention.getColumn(MEAN, 1), [0.375, 0.75]);
});

test("heads are named from 1", () => {
  const model = createReceivedModel();
  assert.equal(nameSeries(model, [MEAN]), "mean of 2 heads");
  assert.equal(nameSeries(model, [1]), "head 10");
  assert.equal(nameSeries(model, [0, 1]), "all heads");
  assert.equal(nameUnit(createModel(), 1), "left (1)");
});

test("lines have at least the threshold, and their share is computed", () => {
  const attention = new Attention(createReceivedModel());
  const all = createLineFilter(attention.model, { specials: true, direction: "all" });
  const { lines, share, visibleShare, drawableCount, minWeight, isCapped } = selectLines(
    attention,
    [0],
    [0, 1],
    all,
    0.5,
  );
  assert.deepEqual(
    lines.map(({ query, key, weight }) => [query, key, weight]),
    [
      [0, 0, 1],
      [1, 0, 0.5],
      [1, 1, 0.5],
    ],
  );
  assert.deepEqual([share, visibleShare, drawableCount, minWeight, isCapped], [1, 1, 3, 0.5, false]);
});

test("without a threshold the strongest lines carry half of the attention", () => {
  const attention = new Attention(createReceivedModel());
  const all = createLineFilter(attention.model, { specials: true, direction: "all" });
  // Head 0 has the weights 1, ½ and ½, of which the first is half of the sum.
  // Head 1 has ¼, ¾ and 1, of which the last is exactly half.
  for (const head of [0, 1]) {
    const { lines, share, visibleShare, drawableCount, minWeight } = selectLines(
      attention,
      [head],
      [0, 1],
      all,
      null,
    );
    assert.deepEqual([lines.length, share, visibleShare, drawableCount, minWeight], [1, 0.5, 0.5, 3, 1]);
  }
  // For query 0 alone, head 1 has the weights ¼ and ¾.
  const { lines, visibleShare } = selectLines(attention, [1], [0], all, null);
  assert.deepEqual([lines.length, visibleShare], [1, 0.75]);
  // Lines with the same weight as the weakest selected line are also drawn, so both weights of ½ are drawn.
  assert.equal(selectLines(attention, [0], [1], all, null).lines.length, 2);
});

test("the strongest lines equal those found by sorting all weights", () => {
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
  const attention = new Attention(
    unpackHeads(packPayload(described, arrays, { weights: [1, count, count] })),
  );
  const all = createLineFilter(attention.model, { specials: true, direction: "all" });
  const { lines, visibleShare } = selectLines(attention, [0], all.units, all, null);
  const sorted = [...weights].sort((a, b) => b - a);
  const total = sorted.reduce((sum, weight) => sum + weight, 0);
  let [sum, number] = [0, 0];
  while (sum < total / 2) sum += sorted[number++];
  assert.equal(lines.length, number);
  assert.ok(
    visibleShare >= 0.5 && visibleShare - sorted[number - 1] / total < 0.5,
    "one line fewer would carry less than half",
  );
});

test("the share of special tokens is computed per query", () => {
  const attention = new Attention(createModel());
  // Token 0 is special. The query word "left" has two tokens: (0, 1) with the scores 0, 0, 1, and (1, 1) with 0, 1, 1.
  const shares = computeSpecialShares(attention, [0, 0], [1]);
  assertNear([shares.get(1) ?? 0], [(1 / 4 + 1 / 5) / 2]);
  const model = { ...createModel(), total: "attention" };
  const selected = {
    ...selectLines(attention, [0], [1], createLineFilter(model, { specials: false, direction: "all" }), null),
  };
  assertNear([selected.share], [1 - (1 / 4 + 1 / 5) / 2]);
  assert.equal(
    describeSpecials(shares),
    " Gray bars: attention on the hidden special tokens, on average 22.5%.",
  );
  const sentence = describeLines(model, {
    ...selected,
    drawableCount: 3,
    visibleShare: 0.52,
    isAutomatic: true,
  });
  const ending = "carrying 77.5% of the attention of the 1 tokens in view.";
  assert.equal(sentence, `The strongest 1 of 3 lines (52.0% of the visible attention), ${ending}`);
  const open = describeLines(model, {
    ...selected,
    drawableCount: 3,
    visibleShare: selected.share,
    isAutomatic: true,
  });
  assert.equal(open, `The strongest 1 of 3 lines, ${ending}`);
});

test("options restrict the visible units and the lines between them", () => {
  const model = createModel();
  assert.deepEqual(createLineFilter(model, { specials: false, direction: "all" }).units, [1]);
  const { isSource, isTarget } = createLineFilter(model, { specials: true, direction: "AB" });
  assert.deepEqual([0, 1].map(isSource), [true, false]);
  assert.deepEqual([0, 1].map(isTarget), [false, true]);
});

test("weights of several units are summed over units and averaged over heads", () => {
  const attention = new Attention(createReceivedModel());
  const active = sumActiveWeights(attention, [0, 1], "query", [0, 1], [0, 1]);
  assert.ok(active);
  assertNear(active.headWeights[0], [1.5, 0.5]);
  assertNear(active.headWeights[1], [0.25, 1.75]);
  assertNear(active.mean, [0.875, 1.125]);
  assert.equal(active.lines.length, 6, "a weight of 0 has no line");
  assert.equal(
    sumActiveWeights(new Attention(createModel()), [0], "key", [0], [0]),
    null,
    "not added up yet",
  );
});
