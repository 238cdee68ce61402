import assert from "node:assert/strict";
import { test } from "node:test";
import { Payload, packPayload } from "./payload.js";

test("arrays and the description survive a round trip", () => {
  const payload = new Payload(
    packPayload(
      { caption: "“ground” → 地" },
      { values: new Float32Array([0.5, -1, Number.NaN]), bits: new Uint8Array([7]) },
    ),
  );
  assert.equal(payload.description.caption, "“ground” → 地");
  assert.deepEqual([...payload.numbers("values", Float32Array)], [0.5, -1, Number.NaN]);
  assert.deepEqual([...payload.numbers("bits", Uint8Array)], [7]);
  assert.deepEqual(payload.shape("values"), [3]);
  assert.equal(payload.has("values"), true);
  assert.equal(payload.has("toString"), false);
});

test("aligned numbers are read in place", () => {
  const bytes = packPayload({}, { values: new Float64Array([1, 2]) });
  const payload = new Payload(bytes);
  assert.equal(payload.numbers("values", Float64Array).buffer, bytes.buffer);
});

test("unaligned numbers are copied", () => {
  const bytes = packPayload({}, { values: new Float64Array([1, 2]) });
  const shifted = new Uint8Array(bytes.length + 1);
  shifted.set(bytes, 1);
  assert.deepEqual([...new Payload(shifted.subarray(1)).numbers("values", Float64Array)], [1, 2]);
});

test("an array of another type is an error", () => {
  const payload = new Payload(packPayload({}, { values: new Float64Array([1]) }));
  assert.throws(() => payload.numbers("values", Float32Array), /values is F64, not F32/);
});
