// The documentation page of the HTTP API, rendered from /api/openapi.json, which the app derives from its questions.
// Text is never inserted as HTML, and nothing is loaded from other servers.

const SHOWN = 50; // maximum number of rows of an answer that are displayed

/** Creates an element with properties and children. */
const element = (name, properties = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};

const cell = (...children) => element("td", {}, ...children);
const code = (text) => element("code", { textContent: text });
const indented = (value) => JSON.stringify(value, null, 2);

/** Returns a short description of the values that a schema allows. */
const kindOf = (schema) => {
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) {
    const some = schema.anyOf.filter((one) => one.type !== "null"); // null means the same as an omitted member
    return [...new Set(some.map(kindOf))].join(" | ");
  }
  if (schema.type === "array") return `[${kindOf(schema.items)}, …]`;
  if (schema.type === "object") {
    return `{${Object.entries(schema.properties ?? {}).map(([name, one]) => `${name}: ${kindOf(one)}`).join(", ")}}`;
  }
  if (schema.pattern?.includes("last")) {
    if (schema.pattern.includes("\\.")) return '"8.10"';
    return schema.pattern.includes("mean") ? '"last" | "mean"' : '"last"';
  }
  if (schema.type === "string") return "text";
  if (schema.type === "boolean") return "true | false";
  if (schema.type === "null") return "null";
  if (schema.type !== "integer" && schema.type !== "number") return String(schema.type);
  const most = schema.maximum >= 999_999_999 ? "" : ` to ${schema.maximum}`;
  return most ? `${schema.minimum}${most}` : `${schema.minimum}, ${schema.minimum + 1}, …`;
};

/** Returns the rows of the table that describes the fields of a schema. */
const fields = (schema, prefix = "") =>
  Object.entries(schema.properties ?? {})
    .filter(([name]) => name !== "question" && name !== "analysis")
    .map(([name, one]) => {
      const needed = schema.required?.includes(name) ? [element("span", { className: "needed", textContent: "required" })] : [];
      const usual = one.default === undefined || one.default === null ? "" : JSON.stringify(one.default);
      return element(
        "tr",
        {},
        element("td", { className: "name" }, code(prefix + name), ...needed),
        cell(code(kindOf(one))),
        element("td", { className: "usual" }, usual ? code(usual) : ""),
        cell(one.description ?? ""),
      );
    });

const fieldTable = (schema) => {
  const heads = ["Field", "Type", "Default", "Description"].map((text) => element("th", { scope: "col", textContent: text }));
  const body = element("tbody", {}, ...fields(schema.properties.question, "question."), ...fields(schema));
  const table = element("table", { className: "fields" }, element("thead", {}, element("tr", {}, ...heads)), body);
  return element("div", { className: "wide" }, table);
};

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const pythonOf = (value) =>
  JSON.stringify(value, null, 4).replace(/"(?:[^"\\]|\\.)*"|\btrue\b|\bfalse\b|\bnull\b/g, (found) =>
    ({ true: "True", false: "False", null: "None" })[found] ?? found,
  );

const LINES = {
  curl: (path, body) => `curl ${location.origin}${path} \\\n  --json ${quoted(JSON.stringify(body))}`,
  Python: (path, body) =>
    `import json, urllib.request\n\nbody = ${pythonOf(body)}\nrequest = urllib.request.Request(\n` +
    `    "${location.origin}${path}",\n    json.dumps(body).encode(),\n    {"Content-Type": "application/json"},\n)\n` +
    "with urllib.request.urlopen(request) as answer:\n    print(json.load(answer)[\"columns\"])",
};

/** Creates two tabs with code for the same request, one for each language. */
const lines = (path, body) => {
  const shown = element("pre", { tabIndex: 0 });
  const buttons = Object.keys(LINES).map((name) => element("button", { type: "button", textContent: name, role: "tab" }));
  const choose = (chosen) => {
    shown.textContent = LINES[chosen.textContent](path, body);
    for (const one of buttons) one.setAttribute("aria-selected", String(one === chosen));
  };
  for (const one of buttons) one.onclick = () => choose(one);
  choose(buttons[0]);
  return [element("div", { className: "row", role: "tablist" }, ...buttons), shown];
};

/** Returns the column names in the order of the response text. JSON.parse would move numeric names to the front. */
const namesOf = (content, columns) => {
  const written = content.slice(content.lastIndexOf('\n "columns": {\n')).matchAll(/^ {2}("(?:[^"\\]|\\.)*"): /gm);
  const names = [...written].map(([, name]) => JSON.parse(name));
  return names.length === Object.keys(columns).length ? names : Object.keys(columns);
};

/** Creates a table of the first rows of an answer. */
const answerTable = (content) => {
  const { columns } = JSON.parse(content);
  const names = namesOf(content, columns);
  const count = names.length ? columns[names[0]].length : 0;
  const rows = Array.from({ length: Math.min(count, SHOWN) }, (_, row) =>
    element("tr", {}, ...names.map((name) => cell(element("span", { className: "number", textContent: written(columns[name][row]) })))),
  );
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col", textContent: name })));
  const note = count > SHOWN ? `The first ${SHOWN} of ${count.toLocaleString("en")} rows.` : `${count} rows.`;
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  return [element("p", { className: "said", textContent: note }), element("div", { className: "wide", tabIndex: 0 }, table)];
};

const written = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toFixed(4) : String(value ?? ""));

/** Creates a form in which the body of a request can be edited and sent. */
const trial = (path, example) => {
  const text = element("textarea", { value: indented(example), spellcheck: false, ariaLabel: "Body" });
  const send = element("button", { type: "button", textContent: "Send", className: "first" });
  const place = element("div", { role: "status" });
  send.onclick = async () => {
    send.disabled = true;
    place.replaceChildren(element("p", { className: "said", textContent: "Waiting for the answer …" }));
    const began = performance.now();
    try {
      const headers = { "Content-Type": "application/json", Accept: "application/json" };
      const answer = await fetch(path, { method: "POST", headers, body: text.value });
      const told = await answer.text();
      const took = `${answer.status} after ${Math.round(performance.now() - began)} ms.`;
      if (answer.ok) place.replaceChildren(element("p", { className: "said", textContent: took }), ...answerTable(told));
      else {
        const { title, detail } = JSON.parse(told);
        place.replaceChildren(element("p", { className: "wrong", textContent: `${took} ${title}: ${detail}` }));
      }
    } catch {
      place.replaceChildren(element("p", { className: "wrong", textContent: "The app did not answer. Is it still running?" }));
    } finally {
      send.disabled = false;
    }
  };
  return [text, element("div", { className: "row" }, send), place];
};

/** Creates the section of a question. The content below the heading is created when the section scrolls into view. */
const question = (path, { summary, description, operationId, requestBody }) => {
  const { schema, example } = requestBody.content["application/json"];
  const place = element("div");
  const section = element("section", { id: operationId }, element("h2", { textContent: summary }));
  section.append(
    element("p", { className: "said", textContent: description }),
    element("p", {}, code(`POST ${path}`)),
    place,
  );
  const fill = () =>
    place.replaceChildren(
      fieldTable(schema),
      element("h3", { textContent: "Example" }),
      ...lines(path, example),
      element("h3", { textContent: "Try it" }),
      ...trial(path, example),
    );
  new IntersectionObserver((seen, watch) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watch.disconnect();
    fill();
  }, { rootMargin: "800px" }).observe(section);
  return section;
};

const draw = (document_) => {
  const asked = Object.entries(document_.paths).filter(([, one]) => one.post);
  document.getElementById("about").textContent = document_.info.description;
  document.getElementById("questions").append(...asked.map(([path, one]) => question(path, one.post)));
  const items = asked.map(([, { post }]) =>
    element("li", {}, element("a", { href: `#${post.operationId}`, textContent: post.summary, title: post.description })),
  );
  document.getElementById("list").append(...items);
  document.getElementById("filter").oninput = ({ target }) => {
    const wanted = target.value.trim().toLowerCase();
    for (const item of items) {
      const link = item.firstChild;
      item.hidden = !`${link.textContent} ${link.title}`.toLowerCase().includes(wanted);
    }
  };
  const kinds = document_["x-problems"].map(({ name, status, title }) =>
    element("tr", { id: name }, cell(element("span", { className: "number", textContent: status })), cell(title)),
  );
  document.getElementById("kinds").append(...kinds);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
};

fetch("/api/openapi.json")
  .then((answer) => answer.json())
  .then(draw)
  .catch(() => {
    document.getElementById("about").textContent = "The list of questions could not be loaded. Reload the page.";
  });
