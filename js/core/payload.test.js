import assert from "node:assert/strict";
import { test } from "node:test";
import { Payload } from "./payload.js";
import { packed } from "./testing.js";

test("arrays and the description come back as they were", () => {
  const payload = new Payload(
    packed(
      { caption: "“ground” → 地" },
      { values: new Float32Array([0.5, -1, Number.NaN]), bits: new Uint8Array([7]) },
    ),
  );
  assert.equal(payload.described.caption, "“ground” → 地");
  assert.deepEqual([...payload.numbers("values", Float32Array)], [0.5, -1, Number.NaN]);
  assert.deepEqual([...payload.numbers("bits", Uint8Array)], [7]);
  assert.deepEqual(payload.shape("values"), [3]);
  assert.equal(payload.has("values"), true);
  assert.equal(payload.has("toString"), false);
});

test("numbers are read where they lie when they are aligned", () => {
  const bytes = packed({}, { values: new Float64Array([1, 2]) });
  const payload = new Payload(bytes);
  assert.equal(payload.numbers("values", Float64Array).buffer, bytes.buffer);
});

test("numbers that are not aligned are read all the same", () => {
  const bytes = packed({}, { values: new Float64Array([1, 2]) });
  const shifted = new Uint8Array(bytes.length + 1);
  shifted.set(bytes, 1);
  assert.deepEqual([...new Payload(shifted.subarray(1)).numbers("values", Float64Array)], [1, 2]);
});

test("an array of another kind is refused", () => {
  const payload = new Payload(packed({}, { values: new Float64Array([1]) }));
  assert.throws(() => payload.numbers("values", Float32Array), /values is F64, not F32/);
});
