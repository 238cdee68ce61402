// Clicks components at random moments, and reads the selection that each component shows. Runs in the page of
// demo_clicks.py.

() => {
  const NAMES = [...Array(9).keys()].map((i) => `token${i}`);
  const all = (selector) => [
    ...document.querySelectorAll(selector),
    ...[...document.querySelectorAll("[data-testid=stBidiComponentIsolated]")].flatMap((host) =>
      host.shadowRoot ? [...host.shadowRoot.querySelectorAll(selector)] : [],
    ),
  ];
  const the = (selector) => all(selector)[0];
  const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const toggle = (name) => the(`[data-testid=stCheckbox] input[aria-label="${name}"]`);
  const cells = (text) => (/\((\d+)\) → .*\((\d+)\)/.exec(text) ?? []).slice(1).join(" ");
  const options = () => all("[aria-label=Native] [role=radio]");
  const pressed = (chips) => chips.filter((chip) => chip.getAttribute("aria-pressed") === "true");
  const looks = () => {
    const chips = all(".chip").filter((chip) => chip.dataset.head !== "all");
    const heads = pressed(chips).map((chip) => (chip.dataset.head === "mean" ? "mean" : Number(chip.dataset.head) + 1));
    return `${the("[role=spinbutton]").getAttribute("aria-valuenow")} ${heads.join(".")}`;
  };
  const point = (canvas, x, y, type) => {
    const box = canvas.getBoundingClientRect();
    const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true };
    canvas.dispatchEvent(new MouseEvent(type, place));
  };
  // For each component, a function that returns the selection it shows, in the form in which the page reports it.
  const shown = {
    strip: () => String(NAMES.indexOf(the(".strip [aria-checked=true]")?.textContent)),
    matrix: () => cells(the(".pinned:not(.hint)")?.textContent ?? "") || "None",
    map: () => the(".layer-map input.layer, .layer-map input[type=range]").value,
    mark: () => /token\d/.exec(the(".layer-map .readout").textContent.replace(/^\d.*/, ""))?.[0] ?? "None",
    view: looks,
    native: () => options().find((one) => one.getAttribute("aria-checked") === "true").textContent,
  };
  /** Returns the selection that a component shows, or null while it is being mounted in another container. */
  const sightOf = (kind) => {
    try {
      return shown[kind]();
    } catch (error) {
      if (error instanceof TypeError) return null;
      throw error;
    }
  };
  const expected = {};
  const click = {
    strip: (random) => all(".strip .piece")[Math.floor(random() * NAMES.length)].click(),
    matrix: (random) => point(the(".matrix:not(.model-view) canvas.marks"), 0.3 + 0.69 * random(), 0.3 + 0.69 * random(), "click"),
    map: (random) => {
      const slider = the(".layer-map input[type=range]");
      slider.value = String(Math.floor(random() * 5));
      slider.dispatchEvent(new Event("input"));
      slider.dispatchEvent(new Event("change"));
    },
    mark: (random) => {
      const stage = the(".layer-map canvas[tabindex]");
      for (let i = Math.floor(random() * 4); i >= 0; i--) press(stage, random() < 0.5 ? "ArrowLeft" : "ArrowRight");
      press(stage, "Enter");
      stage.dispatchEvent(new FocusEvent("blur"));
    },
    view: (random) => {
      if (random() < 0.3) all(".stepper button")[Math.floor(random() * 2)].click();
      else all(".chip")[Math.floor(random() * 7)].click();
    },
    native: (random) => {
      const option = options()[Math.floor(random() * 6)];
      option.click();
      return option.textContent;
    },
  };
  const other = {
    grid: (random) => {
      const canvas = the("canvas.grid");
      const [x, y] = [random(), random()];
      point(canvas, x, y, "pointermove");
      const head = /(\d+)\D+(\d+)/.exec(the(".model-view .readout").textContent);
      point(canvas, x, y, "click");
      if (canvas.style.cursor === "pointer") expected.grid = `${head[1]} ${head[2]}`;
    },
    place: () => toggle("Other place").click(),
    default: () => toggle("Other default").click(),
    numbers: () => toggle("Other numbers").click(),
  };
  let state = 0;
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  // Click in separate tasks, as users do. Within one task, React does not render the option that was clicked first.
  // React Aria would then ignore a click that returns to the option selected before.
  const nextTask = () =>
    new Promise((done) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => {
        channel.port1.close();
        done();
      };
      channel.port2.postMessage(null);
    });
  window.clicks = {
    /** Clicks each kind of component a number of times, in random order, and returns the last choice of each. */
    async run(seed, kinds, count, longest) {
      state = seed;
      const order = kinds.flatMap((kind) => Array(count).fill(kind));
      let misses = 0;
      while (order.length) {
        const [kind] = order.splice(Math.floor(random() * order.length), 1);
        try {
          const choice = (click[kind] ?? other[kind])(random);
          if (click[kind]) expected[kind] = choice ?? shown[kind]();
        } catch (error) {
          if (++misses > 1000) throw new Error(`${kind}: ${error}`);
          order.push(kind); // The component is being mounted at this moment and cannot be clicked.
          await wait(1);
        }
        await (random() < 0.6 ? wait(random() ** 3 * longest) : nextTask());
      }
      return { ...expected };
    },
    /** Returns the components that do not show their last choice: [choice, shown by component, reported by page]. */
    wrong(choices) {
      const lines = [...document.querySelectorAll("[data-testid=stText]")].map((line) => line.textContent.split(" = "));
      const reported = Object.fromEntries(lines);
      const found = Object.entries(choices).map(([kind, choice]) => {
        const sight = shown[kind] ? sightOf(kind) : choice;
        return [kind, choice === sight && choice === reported[kind] ? null : [choice, sight, reported[kind]]];
      });
      return Object.fromEntries(found.filter(([, difference]) => difference));
    },
  };
}
