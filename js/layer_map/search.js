// Search for marks by their names.

/**
 * An index of lower-case names. A query that contains the previous query searches only the names that matched the
 * previous query. A shorter query starts from the matches of an earlier query.
 */
export class SearchIndex {
  /** @param {{names: string[], nameOf: ArrayLike<number>, count: number}} model */
  constructor({ names, nameOf, count }) {
    this.names = names.map((name) => name.toLowerCase());
    this.isMatch = new Uint8Array(count);
    /** Index of each name's first mark: name n has the marks `marks[starts[n]]` to `marks[starts[n + 1] - 1]`. */
    this.starts = new Uint32Array(names.length + 1);
    this.marks = new Uint32Array(count);
    for (let mark = 0; mark < count; mark++) this.starts[nameOf[mark] + 1]++;
    for (let name = 0; name < names.length; name++) this.starts[name + 1] += this.starts[name];
    const next = this.starts.slice();
    for (let mark = 0; mark < count; mark++) this.marks[next[nameOf[mark]]++] = mark;
    /** Queries with the names that match them. Each query contains the previous one. */
    this.history = [{ text: "", names: Uint32Array.from(this.names.keys()) }];
  }

  /**
   * Returns the marks whose name contains a text, ignoring case, in ascending order; null for an empty text.
   *
   * @param {string} query
   */
  find(query) {
    const text = query.trim().toLowerCase();
    if (!text) return null;
    return this.collect(this.findNames(text));
  }

  /** @param {string} text */
  findNames(text) {
    const { history } = this;
    while (!text.includes(history[history.length - 1].text)) history.pop();
    const last = history[history.length - 1];
    if (last.text === text) return last.names;
    const names = last.names.filter((name) => this.names[name].includes(text));
    history.push({ text, names });
    return names;
  }

  /** Returns the marks of some names. @param {Uint32Array} names */
  collect(names) {
    const { isMatch, marks, starts } = this;
    let count = 0;
    isMatch.fill(0);
    for (const name of names) {
      count += starts[name + 1] - starts[name];
      for (let i = starts[name]; i < starts[name + 1]; i++) isMatch[marks[i]] = 1;
    }
    const matches = new Uint32Array(count);
    for (let mark = 0, i = 0; i < count; mark++) if (isMatch[mark]) matches[i++] = mark;
    return matches;
  }
}
