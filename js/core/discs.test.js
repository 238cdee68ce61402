import assert from "node:assert/strict";
import { test } from "node:test";
import { rasterizeDiscs } from "./discs.js";

const GROUND = "#102030";
const STEPS = 4; // subpixel positions per axis

/** Yields reproducible pseudo-random numbers from 0 to 1. */
function* randomNumbers() {
  let seed = 7;
  for (;;) {
    seed = (seed * 16_807) % 2_147_483_647;
    yield seed / 2_147_483_647;
  }
}

/** Returns discs of several styles, some of them beyond the edges. @param {number} width @param {number} height */
function createGroups(width, height) {
  const numbers = randomNumbers();
  const next = () => /** @type {number} */ (numbers.next().value);
  return ["#ff8000", "#4338ca", "#ffffff"].map((fill, i) => ({
    fill,
    radius: 1.5 + i,
    alpha: 0.3 + 0.3 * i,
    positions: Array.from({ length: 240 }, (_, index) => (next() * 1.2 - 0.1) * (index % 2 ? height : width)),
  }));
}

/**
 * Returns the pixels as a reference implementation computes them: each disc is blended into each pixel in floating
 * point.
 *
 * @param {import("./discs.js").Discs[]} groups @param {number} width @param {number} height @param {number} ratio
 */
function blendExactly(groups, width, height, ratio) {
  const bytes = new Float64Array(3 * width * height).map((_, i) => [0x10, 0x20, 0x30][i % 3]);
  for (const { positions, radius, fill, alpha } of groups) {
    const color = [1, 3, 5].map((i) => Number.parseInt(fill.slice(i, i + 2), 16));
    for (let i = 0; i < positions.length; i += 2) {
      const [x, y] = [positions[i] * ratio, positions[i + 1] * ratio].map(
        (length) => Math.floor(length) + (Math.floor((length - Math.floor(length)) * STEPS) + 0.5) / STEPS,
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
  test(`discs are blended like single pixels, at ${ratio} pixels per CSS pixel`, () => {
    const area = { x: 0, y: 0, width: 40, height: 30 };
    const groups = createGroups(area.width, area.height);
    const { width, height, rgba } = rasterizeDiscs(groups, area, ratio, GROUND);
    const expected = blendExactly(groups, width, height, ratio);
    rgba.forEach((word, pixel) => {
      assert.equal(word >>> 24, 255);
      for (let c = 0; c < 3; c++) {
        const off = Math.abs(((word >>> (8 * c)) & 255) - expected[3 * pixel + c]);
        assert.ok(off <= 2, `pixel ${pixel}, channel ${c}: off by ${off}`);
      }
    });
  });
}

test("an area contains the same pixels as the whole picture", () => {
  const area = { x: 0, y: 0, width: 40, height: 30 };
  const part = { x: 10, y: 6, width: 17, height: 11 };
  const groups = createGroups(40, 30);
  const all = rasterizeDiscs(groups, area, 1, GROUND);
  const cropped = rasterizeDiscs(groups, part, 1, GROUND);
  for (let y = 0; y < part.height; y++) {
    const row = all.rgba.slice((y + part.y) * 40 + part.x).slice(0, part.width);
    assert.deepEqual(cropped.rgba.slice(y * part.width, (y + 1) * part.width), row);
  }
});

test("a disc at NaN is omitted", () => {
  const area = { x: 0, y: 0, width: 4, height: 4 };
  const groups = [{ positions: [Number.NaN, 2], radius: 3, fill: "#ffffff", alpha: 1 }];
  assert.equal(new Set(rasterizeDiscs(groups, area, 1, GROUND).rgba).size, 1);
});
