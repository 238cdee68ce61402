// BERT's tokenizer: normalization, splitting into words and punctuation, and WordPiece. It returns each token's span.

/**
 * The data from `website/tokenizer.py`. Ranges are pairs of first and last code points.
 *
 * @typedef {object} TokenizerData
 * @property {string[]} vocabulary the tokens, by id
 * @property {string[]} added tokens that are matched in the text before normalization
 * @property {string} unknown
 * @property {string} prefix prefix of the tokens that continue a word
 * @property {number} maxCharacters maximum length of a word; longer words are unknown
 * @property {[string, string]} template the special tokens before the first and after each text
 * @property {Record<"removed" | "spaces" | "ideographs" | "marks" | "punctuation", [number, number][]>} ranges
 * @property {Record<string, string>} lower lower-case forms that may differ between versions of Unicode
 */

/**
 * A token. `start` and `end` are positions in the text, in UTF-16 units; both are 0 for an added special token.
 *
 * @typedef {object} Token
 * @property {string} text
 * @property {number} id
 * @property {number | null} word index of the word in its text, from 0; null for a special token that the tokenizer added
 * @property {number} segment 0 for the first text, 1 for the second text of a pair
 * @property {number} start
 * @property {number} end
 * @property {boolean} special
 */

/**
 * A normalized character, and the span of the original character.
 *
 * @typedef {{text: string, start: number, end: number}} Letter
 */

export class Tokenizer {
  /** @param {TokenizerData} data */
  constructor(data) {
    this.data = data;
    this.ids = new Map(data.vocabulary.map((token, id) => [token, id]));
    this.longest = data.vocabulary.reduce((longest, token) => Math.max(longest, token.length), 0);
    const { removed, spaces, ideographs, marks, punctuation } = data.ranges;
    this.isRemoved = createRangeTest(removed);
    this.isSpace = createRangeTest(spaces);
    this.isIdeograph = createRangeTest(ideographs);
    this.isMark = createRangeTest(marks);
    this.isPunctuation = createRangeTest(punctuation);
    const names = data.added.map((token) => token.replace(/[[\]]/g, "\\$&"));
    this.added = new RegExp(`(${names.join("|")})`);
  }

  /**
   * Returns the tokens of a text or of a pair of texts, with the special tokens before and after each.
   *
   * @param {string} text
   * @param {string | null} pair
   * @returns {Token[]}
   */
  encode(text, pair = null) {
    const [first, last] = this.data.template.map((name) => ({
      ...this.createToken(name, null, 0, 0),
      special: true,
    }));
    const tokens = [first, ...this.splitText(text), last];
    if (pair === null) return tokens;
    return [...tokens, ...[...this.splitText(pair), last].map((token) => ({ ...token, segment: 1 }))];
  }

  /** Returns the tokens of a text without special tokens before and after it. @param {string} text */
  splitText(text) {
    /** @type {Token[]} */
    const tokens = [];
    let word = 0;
    let start = 0;
    for (const part of text.split(this.added)) {
      if (this.data.added.includes(part)) {
        tokens.push(this.createToken(part, word++, start, start + part.length));
      } else {
        for (const letters of this.splitWords(this.normalize(part, start))) {
          tokens.push(...this.splitWord(letters, word++));
        }
      }
      start += part.length;
    }
    return tokens;
  }

  /** @param {string} text @param {number | null} word @param {number} start @param {number} end @returns {Token} */
  createToken(text, word, start, end) {
    return { text, id: this.ids.get(text) ?? 0, word, start, end, segment: 0, special: false };
  }

  /**
   * Removes control characters and accents, puts spaces around ideographs, and converts to lower case.
   *
   * @param {string} text
   * @param {number} offset offset of the text
   */
  normalize(text, offset) {
    /** @type {Letter[]} */
    const letters = [];
    let start = offset;
    for (const character of text) {
      const end = start + character.length;
      const span = { start, end };
      start = end;
      if (this.isRemoved(character)) continue;
      if (this.isSpace(character)) letters.push({ text: " ", ...span });
      else if (this.isIdeograph(character)) {
        letters.push({ text: " ", ...span }, { text: character, ...span }, { text: " ", ...span });
      } else letters.push({ text: character, ...span });
    }
    return letters.flatMap((letter) => this.decompose(letter));
  }

  /** @param {Letter} letter @returns {Letter[]} */
  decompose({ text, start, end }) {
    return Array.from(text.normalize("NFD"))
      .filter((character) => !this.isMark(character))
      .flatMap((character) => Array.from(this.data.lower[character] ?? character.toLowerCase()))
      .map((character) => ({ text: character, start, end }));
  }

  /** Splits at spaces. Each punctuation character is a separate word. @param {Letter[]} letters */
  splitWords(letters) {
    /** @type {Letter[][]} */
    const words = [];
    /** @type {Letter[]} */
    let word = [];
    const finish = () => {
      if (word.length) words.push(word);
      word = [];
    };
    for (const letter of letters) {
      if (this.isSpace(letter.text)) finish();
      else if (this.isPunctuation(letter.text)) {
        finish();
        words.push([letter]);
      } else word.push(letter);
    }
    finish();
    return words;
  }

  /**
   * Splits a word into the longest matching tokens, from left to right; returns the unknown token if none match.
   *
   * @param {Letter[]} letters
   * @param {number} word
   */
  splitWord(letters, word) {
    const unknown = [this.createToken(this.data.unknown, word, letters[0].start, lastOf(letters).end)];
    if (letters.length > this.data.maxCharacters) return unknown;
    const tokens = [];
    let first = 0;
    while (first < letters.length) {
      let after = Math.min(letters.length, first + this.longest);
      let name = "";
      for (; after > first; after--) {
        const spelled = letters
          .slice(first, after)
          .map((letter) => letter.text)
          .join("");
        name = first ? this.data.prefix + spelled : spelled;
        if (this.ids.has(name)) break;
      }
      if (after === first) return unknown;
      tokens.push(this.createToken(name, word, letters[first].start, letters[after - 1].end));
      first = after;
    }
    return tokens;
  }
}

/**
 * @template T
 * @param {T[]} items
 */
function lastOf(items) {
  return items[items.length - 1];
}

/**
 * Returns a function that tests whether a character is in sorted ranges, by binary search.
 *
 * @param {[number, number][]} ranges
 */
function createRangeTest(ranges) {
  return (/** @type {string} */ character) => {
    const code = character.codePointAt(0) ?? 0;
    let [low, high] = [0, ranges.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (code < ranges[middle][0]) high = middle - 1;
      else if (code > ranges[middle][1]) low = middle + 1;
      else return true;
    }
    return false;
  };
}
