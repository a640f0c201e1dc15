// Pieces that several parts of the page are made of.

// An element. Strings among the children become text; null and false are left out.
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

function sized(element, share) {
  element.style.flexGrow = share; // through the object model: the content policy allows no style attributes
  return element;
}

const MOST = 512; // slices that are drawn of a device: a number that an agent or a pod wrote may be any

const repeat = (number, item) => Array.from({ length: Math.max(0, Math.min(number, MOST)) }, () => item);

// A bar for each device: its slices, each as wide as the others, or runs of them where more than `most` were too thin.
function bar(devices, chosen, most) {
  const every = sum(devices, (device) => sum(Object.values(device.parts), Number)) <= most;
  if (!devices.length) return [h("span", { class: "device" })];
  return devices.map((device) => {
    const cells = Object.keys(PARTS).flatMap((part) => {
      const number = device.parts[part] ?? 0;
      if (!number) return [];
      if (every) return repeat(number, part).map((name) => h("i", { class: `part ${name}` }));
      return [sized(h("i", { class: `part ${part}` }), number)];
    });
    return h("span", { class: chosen.includes(device) ? "device" : "device off" }, cells);
  });
}

const spoken = (parts) =>
  Object.entries(PARTS)
    .filter(([part]) => parts[part])
    .map(([part]) => `${parts[part]} ${wordOf(part)}`)
    .join(", ");

// A table that becomes a list of cards on a narrow screen. The roles are said: `display` would take them away there.
function table(caption, columns, rows) {
  const head = columns.map((column) =>
    h("th", { role: "columnheader", scope: "col", class: column.number ? "number" : null }, column.label),
  );
  return h(
    "table",
    { role: "table", class: "rows" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) =>
        h(
          "tr",
          { role: "row" },
          row.map((cell, place) =>
            h(
              "td",
              {
                role: "cell",
                "data-label": columns[place].label,
                class: columns[place].number ? "number" : columns[place].wide ? "wide" : null,
              },
              cell === null || cell === "–" ? h("span", { class: "nothing" }, "–") : cell,
            ),
          ),
        ),
      ),
    ),
  );
}

const time = (text) => h("time", { datetime: text }, instant(text));
const chip = (kind, ...text) => h("span", { class: `chip ${kind}` }, ...text);

function noteLine(note, open) {
  const mark = SERIOUS.has(note.kind) ? "serious" : "mild";
  return h(
    "li",
    { class: mark },
    chip(mark, sentence(note.kind)),
    " ",
    open ? h("button", { type: "button", class: "link", onclick: () => open(note.node) }, note.node) : null,
    open ? ": " : null,
    note.message,
  );
}
