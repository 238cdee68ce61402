// A text as pills. Roving focus: one pill is in the tab order, arrow keys go from pill to pill.

const views = new WeakMap();

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function isDark(root) {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(root).getPropertyValue("--st-background-color").trim() || "#fff";
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
}

class StripView {
  constructor(root) {
    this.root = root;
    this.tip = element("div", { class: "tip", popover: "manual", role: "tooltip" });
    root.after(this.tip);
    root.onpointerover = (event) => this.tell(event.target.closest(".piece"));
    root.onpointerleave = () => this.tell(null);
    root.onfocusin = (event) => event.target.matches(":focus-visible") && this.tell(event.target.closest(".piece"));
    root.onfocusout = () => this.tell(null);
    root.onscroll = () => this.tell(null);
    root.onclick = (event) => this.click(event.target.closest(".piece"));
    root.onkeydown = (event) => this.press(event);
  }

  update({ data, setStateValue }) {
    const before = this.data;
    this.data = data;
    this.report = (position) => setStateValue("chosen", { position, digest: data.digest });
    // After the first sight the reader's own choice is newer than what the server knows of it.
    const fresh = before?.digest !== data.digest || before?.initial !== data.initial;
    if (fresh) this.chosen = data.selected;
    if (before?.digest !== data.digest || before?.selectable !== data.selectable) this.build();
    this.tint();
    this.mark();
    if (fresh) this.reveal();
  }

  build() {
    const { pieces, selectable, label } = this.data;
    this.root.setAttribute("role", selectable ? "radiogroup" : "list");
    this.root.setAttribute("aria-label", label);
    this.pills = pieces.map((piece) => this.pill(piece));
    const words = [];
    pieces.forEach((piece, i) => {
      if (!piece.joined || !words.length) words.push(element("span", { class: "word", role: "presentation" }));
      words.at(-1).append(this.pills[i]);
    });
    this.root.replaceChildren(...words);
    this.current = Math.max(0, pieces.findIndex((piece) => piece.mark === "partner"));
    this.tell(null);
  }

  pill(piece) {
    const text = visibleText(piece.text);
    const role = this.data.selectable ? "radio" : "listitem";
    const label = piece.detail ? `${text}, ${piece.detail}` : text;
    return element("span", { class: `piece ${piece.kind} ${piece.mark}`, role, "aria-label": label, tabindex: "-1" }, text);
  }

  tint() {
    const theme = isDark(this.root) ? 1 : 0;
    for (const [name, tints] of Object.entries(this.data.tints)) {
      this.root.style.setProperty(`--tint-${name.toLowerCase()}`, tints[theme]);
    }
  }

  /** Shows which pill is chosen, and leaves exactly one in the tab order. */
  mark() {
    const chosen = this.data.pieces.findIndex((piece) => piece.position === this.chosen);
    if (chosen >= 0) this.current = chosen;
    this.pills.forEach((pill, i) => {
      pill.tabIndex = i === this.current ? 0 : -1;
      if (this.data.selectable) pill.setAttribute("aria-checked", String(i === chosen));
    });
  }

  /** Scrolls a long text, and nothing around it, to the chosen pill. */
  reveal() {
    const pill = this.pills[this.current].getBoundingClientRect();
    const box = this.root.getBoundingClientRect();
    if (pill.bottom > box.bottom || pill.top < box.top) {
      this.root.scrollTop += pill.top - box.top - (box.height - pill.height) / 2;
    }
  }

  choose(index) {
    const { position } = this.data.pieces[index];
    if (position === this.chosen) return;
    this.chosen = position;
    this.mark();
    this.report(position);
  }

  click(pill) {
    if (pill && this.data.selectable) this.choose(this.pills.indexOf(pill));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.pills.length - 1;
    const goals = {
      ArrowLeft: this.current - 1,
      ArrowUp: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowDown: this.current + 1,
      Home: 0,
      End: last,
    };
    if (event.key === "Escape") return this.tell(null);
    if (event.key === " " || event.key === "Enter") this.click(this.pills[this.current]);
    else if (Object.hasOwn(goals, event.key)) this.go(Math.min(Math.max(goals[event.key], 0), last));
    else return undefined;
    return event.preventDefault();
  }

  go(index) {
    this.current = index;
    this.mark();
    this.pills[index].focus();
    if (this.data.selectable) this.choose(index);
  }

  /** The detail of a pill in the browser's top layer, where nothing can clip it. */
  tell(pill) {
    const detail = pill && this.data.pieces[this.pills.indexOf(pill)].detail;
    if (!detail) return this.tip.matches(":popover-open") && this.tip.hidePopover();
    this.tip.textContent = detail;
    if (!this.tip.matches(":popover-open")) this.tip.showPopover();
    return this.place(pill.getBoundingClientRect());
  }

  place(pill) {
    const tip = this.tip.getBoundingClientRect();
    const left = pill.left + pill.width / 2 - tip.width / 2;
    const above = pill.top - tip.height - 6;
    this.tip.style.left = `${Math.min(Math.max(left, 8), window.innerWidth - tip.width - 8)}px`;
    this.tip.style.top = `${above >= 8 ? above : pill.bottom + 6}px`;
  }
}

export default function (component) {
  const root = component.parentElement.querySelector(".strip");
  if (!views.has(root)) views.set(root, new StripView(root));
  views.get(root).update(component);
}
