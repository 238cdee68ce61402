// What is drawn: the tokens, and attention computed from queries and keys when somebody looks at it. No drawing here.

const MEAN = "mean"; // in place of a head's index: the mean over all heads of the layer
const ROWS_HELD = 16e6; // weights kept at most, so that a long text does not fill the memory

/** The payload, as packed by head_view.py: header length, header, then float32 arrays and the mask's bits. */
function unpackHeads(bytes) {
  const headerLength = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  // A copy, because a view of floats needs an aligned start.
  const body = bytes.slice(4 + headerLength).buffer;
  let offset = 0;
  const floats = (count) => {
    offset += 4 * count;
    return new Float32Array(body, offset - 4 * count, count);
  };
  const { kind, heads, tokenCount, dim, texts, firsts, segments, specials } = header;
  const units = texts.map((text, i) => ({
    text,
    segment: segments[i],
    special: Boolean(specials[i]),
    first: firsts[i],
    pieces: (firsts[i + 1] ?? tokenCount) - firsts[i],
  }));
  const square = (kind === "weights" ? heads.length : 0) * units.length ** 2;
  const vectors = (kind === "vectors" ? heads.length : 0) * tokenCount * dim;
  return {
    ...header,
    units,
    labels: units.map((unit) => visibleText(unit.text)),
    weights: floats(square),
    queries: floats(vectors),
    keys: floats(vectors),
    lengths: header.weighted ? floats(heads.length * tokenCount) : null,
    maskBits: header.maskRows ? new Uint8Array(body, offset) : null,
  };
}

/** Attention of one layer between units (tokens or words), row by row and column by column. */
class Attention {
  constructor(model) {
    this.model = model;
    this.count = model.units.length;
    this.rows = new Map();
    this.logSums = model.heads.map(() => new Float64Array(model.tokenCount).fill(NaN));
    this.scores = new Float64Array(model.tokenCount);
  }

  /** What a query unit gives to every key unit, by one head or the mean over all. */
  row(head, query) {
    if (this.model.kind === "weights" && head !== MEAN) {
      const start = (head * this.count + query) * this.count;
      return this.model.weights.subarray(start, start + this.count);
    }
    const id = `${head}/${query}`;
    let row = this.rows.get(id);
    if (row) return row;
    row = head === MEAN ? this.meanRow(query) : this.mergedRow(head, query);
    if (this.rows.size * this.count > ROWS_HELD) this.rows.clear();
    this.rows.set(id, row);
    return row;
  }

  meanRow(query) {
    const mean = new Float64Array(this.count);
    const { heads } = this.model;
    heads.forEach((_, head) => this.row(head, query).forEach((weight, key) => (mean[key] += weight)));
    return Float32Array.from(mean, (sum) => sum / heads.length);
  }

  /** Pieces merged into units: summed over a key's pieces, averaged over a query's. */
  mergedRow(head, query) {
    const { units, lengths, tokenCount } = this.model;
    const [first, pieces] = [units[query].first, units[query].pieces];
    const row = new Float64Array(this.count);
    for (let token = first; token < first + pieces; token++) {
      const weights = this.tokenRow(head, token);
      units.forEach((unit, key) => {
        for (let i = unit.first; i < unit.first + unit.pieces; i++) {
          row[key] += lengths ? weights[i] * lengths[head * tokenCount + i] : weights[i];
        }
      });
    }
    return Float32Array.from(row, (sum) => sum / pieces);
  }

  /** Softmax of a token's scores; the array is used again by the next call. */
  tokenRow(head, query) {
    const { queries, keys, dim, tokenCount, scaling, maskBits } = this.model;
    const scores = this.scores;
    const q = (head * tokenCount + query) * dim;
    // Written out, as this is where the time goes: `score` for every key.
    for (let key = 0, k = head * tokenCount * dim; key < tokenCount; key++, k += dim) {
      let sum = 0;
      for (let i = 0; i < dim; i++) sum += queries[q + i] * keys[k + i];
      scores[key] = maskBits && this.masked(query, key) ? -Infinity : sum * scaling;
    }
    const logSum = logSumExp(scores);
    this.logSums[head][query] = logSum;
    for (let key = 0; key < tokenCount; key++) scores[key] = Math.exp(scores[key] - logSum);
    return scores;
  }

  score(head, query, key) {
    const { queries, keys, dim, tokenCount, scaling } = this.model;
    if (this.masked(query, key)) return -Infinity;
    const [q, k] = [(head * tokenCount + query) * dim, (head * tokenCount + key) * dim];
    let sum = 0;
    for (let i = 0; i < dim; i++) sum += queries[q + i] * keys[k + i];
    return sum * scaling;
  }

  masked(query, key) {
    const { maskBits, maskRows, tokenCount } = this.model;
    if (!maskBits) return false;
    const row = maskRows === 1 ? 0 : query;
    const byte = maskBits[row * Math.ceil(tokenCount / 8) + (key >> 3)];
    return ((byte >> (7 - (key & 7))) & 1) === 0;
  }

  /** What every query unit gives to a key unit, or null while `prepare` has not been through the head's rows. */
  column(head, key) {
    if (this.model.kind === "weights" && head !== MEAN) {
      return Float32Array.from({ length: this.count }, (_, query) => this.row(head, query)[key]);
    }
    const { heads } = this.model;
    const parts = (head === MEAN ? heads.map((_, i) => i) : [head]).map((one) => this.headColumn(one, key));
    if (parts.includes(null)) return null;
    return Float32Array.from(parts[0], (_, query) => parts.reduce((sum, part) => sum + part[query], 0) / parts.length);
  }

  headColumn(head, key) {
    if (this.model.kind === "weights") return this.column(head, key);
    if (!this.isPrepared(head)) return null;
    const { units, lengths, tokenCount } = this.model;
    const target = units[key];
    return Float64Array.from(units, (unit) => {
      let sum = 0;
      for (let query = unit.first; query < unit.first + unit.pieces; query++) {
        for (let i = target.first; i < target.first + target.pieces; i++) {
          const weight = Math.exp(this.score(head, query, i) - this.logSums[head][query]);
          sum += lengths ? weight * lengths[head * tokenCount + i] : weight;
        }
      }
      return sum / unit.pieces;
    });
  }

  isPrepared(head) {
    return this.model.kind === "weights" || !this.logSums[head].some(Number.isNaN);
  }

  /** Goes through rows whose sums are not known yet until the time is up; true when none is left. */
  prepare(heads, milliseconds) {
    const end = performance.now() + milliseconds;
    for (const head of heads) {
      for (let query = 0; query < this.model.tokenCount && this.model.kind !== "weights"; query++) {
        if (!Number.isNaN(this.logSums[head][query])) continue;
        this.tokenRow(head, query);
        if (performance.now() > end) return false;
      }
    }
    return true;
  }
}

function logSumExp(scores) {
  let most = -Infinity;
  for (const score of scores) if (score > most) most = score;
  let sum = 0;
  for (const score of scores) sum += Math.exp(score - most);
  return most + Math.log(sum);
}

const STEPS = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
const CLEAR = 1500; // lines that can still be told apart; the automatic threshold keeps to it
const MOST_LINES = 60_000; // lines that a browser still draws in a moment

/** Which of the units may be shown, and which pairs of them may be joined. */
function allowed(model, options) {
  const shown = model.units.flatMap((unit, i) => (options.specials || !unit.special ? [i] : []));
  const [from, to] = options.direction === "all" ? [null, null] : [...options.direction].map((side) => Number(side === "B"));
  return {
    shown,
    isSource: (i) => from === null || model.units[i].segment === from,
    isTarget: (i) => to === null || model.units[i].segment === to,
  };
}

/**
 * The lines to draw from some query units: {head, query, key, weight}, with the share of those queries'
 * attention that they carry, and the threshold used. A threshold of null picks the smallest step that leaves a
 * clear picture. Lines beyond what a browser can draw are left out from the weakest on, which `capped` says.
 */
function linesFrom(attention, series, queries, permitted, threshold) {
  const sources = queries.filter(permitted.isSource);
  const targets = permitted.shown.filter(permitted.isTarget);
  const rows = series.flatMap((head) => sources.map((query) => ({ head, query, row: attention.row(head, query) })));
  const { full } = attention.model;
  const step = threshold ?? clearStep(rows, targets, full);
  let least = step * full;
  let lines = linesAbove(rows, targets, least);
  const capped = lines.length > MOST_LINES;
  if (capped) {
    least = Float32Array.from(lines, (line) => line.weight).sort()[lines.length - MOST_LINES];
    lines = lines.filter((line) => line.weight >= least);
  }
  let total = 0;
  for (const head of series) for (const query of queries) total += sumOf(attention.row(head, query));
  const carried = lines.reduce((sum, line) => sum + line.weight, 0);
  return { lines, share: total ? carried / total : 0, step, least, capped };
}

function linesAbove(rows, targets, least) {
  const lines = [];
  for (const { head, query, row } of rows) {
    for (const key of targets) {
      if (row[key] > 0 && row[key] >= least) lines.push({ head, query, key, weight: row[key] });
    }
  }
  return lines;
}

/** The smallest step that leaves a clear picture: for each of them, how many lines are at least as strong. */
function clearStep(rows, targets, full) {
  const counts = new Float64Array(STEPS.length);
  const steps = STEPS.map((step) => step * full);
  for (const { row } of rows) {
    for (const key of targets) {
      for (let i = 0; i < steps.length && row[key] >= steps[i]; i++) if (row[key] > 0) counts[i]++;
    }
  }
  return STEPS.find((_, i) => counts[i] <= CLEAR) ?? STEPS.at(-1);
}

function sumOf(row) {
  let sum = 0;
  for (const weight of row) sum += weight;
  return sum;
}

const FAINT = 0.002; // share of the full strength below which a line could not be seen

/**
 * The weights between chosen units of one side and all units of the other, added up over the chosen ones:
 * `parts`, one array for each of the series, their `mean`, and the `lines` to the targets. Null while columns are
 * not ready.
 */
function chosenWeights(attention, series, side, chosen, targets) {
  const parts = [];
  const lines = [];
  for (const head of series) {
    const sum = new Float64Array(attention.count);
    for (const unit of chosen) {
      const weights = side === "query" ? attention.row(head, unit) : attention.column(head, unit);
      if (!weights) return null;
      weights.forEach((weight, i) => (sum[i] += weight));
      for (const target of targets) {
        const weight = weights[target];
        const [query, key] = side === "query" ? [unit, target] : [target, unit];
        if (weight >= FAINT * attention.model.full) lines.push({ head, query, key, weight });
      }
    }
    parts.push(sum);
  }
  const mean = parts[0].map((_, i) => parts.reduce((sum, part) => sum + part[i], 0) / parts.length);
  return { parts, mean, lines };
}

/** "ground (11)" */
function unitName(model, unit) {
  return `${model.labels[unit]} (${model.units[unit].first})`;
}

function headName(model, head) {
  if (head !== MEAN) return `head ${model.heads[head] + 1}`;
  return model.heads.length > 1 ? `mean of ${model.heads.length} heads` : "mean over the heads";
}

function seriesName(model, series) {
  if (series.length === 1) return headName(model, series[0]);
  if (series.length === model.heads.length) return "all heads";
  return `heads ${series.map((head) => model.heads[head] + 1).join(", ")}`;
}
