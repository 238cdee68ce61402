import assert from "node:assert/strict";
import test from "node:test";
import { formatCsv } from "./csv.js";

test("a table keeps every digit and quotes special characters", () => {
  const columns = [
    { name: "token", cells: ['a "b"', "c,d", "e\nf", null] },
    { name: "weight", cells: [0.123456789, 1e-9, -2, null] },
  ];
  assert.equal(formatCsv({ columns }), 'token,weight\n"a ""b""",0.123456789\n"c,d",1e-9\n"e\nf",-2\n,\n');
});

test("a table without columns is an empty line", () => {
  assert.equal(formatCsv({ columns: [] }), "\n");
});
