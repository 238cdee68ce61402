import assert from "node:assert/strict";
import { test } from "node:test";
import { rasterised } from "./discs.js";

const GROUND = "#102030";
const STEPS = 4; // places within a pixel that are told apart

/** Numbers from 0 to 1 that are the same each time. */
function* drawn() {
  let seed = 7;
  for (;;) {
    seed = (seed * 16_807) % 2_147_483_647;
    yield seed / 2_147_483_647;
  }
}

/** Discs of several looks, some of them over the edges. @param {number} width @param {number} height */
function many(width, height) {
  const numbers = drawn();
  const next = () => /** @type {number} */ (numbers.next().value);
  return ["#ff8000", "#4338ca", "#ffffff"].map((fill, i) => ({
    fill,
    radius: 1.5 + i,
    alpha: 0.3 + 0.3 * i,
    at: Array.from({ length: 240 }, (_, one) => (next() * 1.2 - 0.1) * (one % 2 ? height : width)),
  }));
}

/** Each pixel and each disc by itself, in floating numbers. @param {import("./discs.js").Discs[]} groups @param {number} width @param {number} height @param {number} ratio */
function plain(groups, width, height, ratio) {
  const bytes = new Float64Array(3 * width * height).map((_, i) => [0x10, 0x20, 0x30][i % 3]);
  for (const { at, radius, fill, alpha } of groups) {
    const color = [1, 3, 5].map((i) => Number.parseInt(fill.slice(i, i + 2), 16));
    for (let i = 0; i < at.length; i += 2) {
      const [x, y] = [at[i] * ratio, at[i + 1] * ratio].map(
        (one) => Math.floor(one) + (Math.floor((one - Math.floor(one)) * STEPS) + 0.5) / STEPS,
      );
      for (let pixel = 0; pixel < width * height; pixel++) {
        const away = Math.hypot((pixel % width) + 0.5 - x, Math.floor(pixel / width) + 0.5 - y);
        const share = alpha * Math.min(Math.max(radius * ratio + 0.5 - away, 0), 1);
        for (let c = 0; c < 3; c++) bytes[3 * pixel + c] += (color[c] - bytes[3 * pixel + c]) * share;
      }
    }
  }
  return bytes;
}

for (const ratio of [1, 2]) {
  test(`discs are blended as each pixel by itself would be, at ${ratio} pixels a CSS pixel`, () => {
    const area = { x: 0, y: 0, width: 40, height: 30 };
    const groups = many(area.width, area.height);
    const { width, height, words } = rasterised(groups, area, ratio, GROUND);
    const expected = plain(groups, width, height, ratio);
    words.forEach((word, pixel) => {
      assert.equal(word >>> 24, 255);
      for (let c = 0; c < 3; c++) {
        const off = Math.abs(((word >>> (8 * c)) & 255) - expected[3 * pixel + c]);
        assert.ok(off <= 2, `pixel ${pixel}, channel ${c}: off by ${off}`);
      }
    });
  });
}

test("an area shows what of a larger picture lies in it", () => {
  const whole = { x: 0, y: 0, width: 40, height: 30 };
  const part = { x: 10, y: 6, width: 17, height: 11 };
  const groups = many(40, 30);
  const all = rasterised(groups, whole, 1, GROUND);
  const some = rasterised(groups, part, 1, GROUND);
  for (let y = 0; y < part.height; y++) {
    const row = all.words.slice((y + part.y) * 40 + part.x).slice(0, part.width);
    assert.deepEqual(some.words.slice(y * part.width, (y + 1) * part.width), row);
  }
});

test("a place that is no number is left out", () => {
  const area = { x: 0, y: 0, width: 4, height: 4 };
  const groups = [{ at: [Number.NaN, 2], radius: 3, fill: "#ffffff", alpha: 1 }];
  assert.equal(new Set(rasterised(groups, area, 1, GROUND).words).size, 1);
});
