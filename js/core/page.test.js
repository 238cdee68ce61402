import assert from "node:assert/strict";
import { test } from "node:test";
import { unpack } from "./page.js";

test("a payload in a page is unpacked to the bytes that Python packed", async () => {
  // The output of Python's `as_text` for b"plain" and for the numbers 0 to 63.
  const bytes = await unpack([1, 7, "E67RA%mV-b"]);
  assert.equal(new TextDecoder().decode(bytes), "plain");
  const text =
    "V_+Cy(7@o(u;9Q01_1/Fhk%5FhK/m{7OdE?.G_gvHy*tB@PmPcgGWF_LPkMFL,w0x!p6bH!zUmlA|@dvBd4IGqK3iV0Sp{*04D+f00000";
  const numbers = await unpack([4, 81, text]);
  assert.deepEqual(
    new Float32Array(numbers.buffer),
    Float32Array.from({ length: 64 }, (_, i) => i),
  );
});
