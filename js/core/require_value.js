// A check for fields that are set after their object is constructed.

/**
 * Returns a value, or throws an error if it is not set yet.
 *
 * @template T
 * @param {T | null | undefined} value
 * @param {string} name
 * @returns {T}
 */
export function requireValue(value, name) {
  if (value === null || value === undefined) throw new Error(`The ${name} is not set yet.`);
  return value;
}
