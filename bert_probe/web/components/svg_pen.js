// A pen that writes SVG and answers to the names of a canvas: a picture painted once goes to the screen and to a file.

class SvgPen {
  constructor(width, height, title) {
    this.root = this.node("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
    this.root.append(this.node("title", {}, title));
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px sans-serif" });
    Object.assign(this, { textAlign: "left", textBaseline: "alphabetic", shift: [0, 0] });
    this.path = [];
  }

  get text() {
    return new XMLSerializer().serializeToString(this.root);
  }

  node(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  add(name, attributes, text) {
    const faded = this.globalAlpha < 1 ? { opacity: rounded(this.globalAlpha) } : {};
    this.root.append(this.node(name, { ...attributes, ...faded }, text));
  }

  /** Moves everything that follows. */
  translate(x, y) {
    this.shift = [this.shift[0] + x, this.shift[1] + y];
  }

  at(...points) {
    return points.map((length, i) => rounded(length + this.shift[i % 2])).join(" ");
  }

  beginPath() {
    this.path = [];
  }

  moveTo(x, y) {
    this.path.push(`M${this.at(x, y)}`);
  }

  lineTo(x, y) {
    this.path.push(`L${this.at(x, y)}`);
  }

  bezierCurveTo(...points) {
    this.path.push(`C${this.at(...points)}`);
  }

  stroke() {
    this.add("path", { d: this.path.join(""), fill: "none", stroke: this.strokeStyle, "stroke-width": rounded(this.lineWidth) });
  }

  fillRect(x, y, width, height) {
    this.rectangle(x, y, width, height, 0);
  }

  rectangle(x, y, width, height, radius) {
    const [left, top] = [rounded(x + this.shift[0]), rounded(y + this.shift[1])];
    this.add("rect", { x: left, y: top, width: rounded(width), height: rounded(height), rx: radius, fill: this.fillStyle });
  }

  fillText(text, x, y) {
    const [, weight, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/s.exec(this.font);
    const anchors = { left: "start", center: "middle", right: "end" };
    // Not dominant-baseline, which many programs ignore: letters reach about 0.35 of their size above the middle.
    const drop = this.textBaseline === "middle" ? 0.35 * Number(size) : 0;
    const [left, base] = [rounded(x + this.shift[0]), rounded(y + drop + this.shift[1])];
    const style = { "font-family": family, "font-size": size, "font-weight": weight ?? 400, fill: this.fillStyle };
    this.add("text", { x: left, y: base, "text-anchor": anchors[this.textAlign], ...style }, text);
  }
}

function rounded(length) {
  return Math.round(length * 100) / 100;
}
