// The nodes as a listbox of cards. Only those in sight exist: 5,000 nodes cost as much as fifty.

const LAYOUT = {
  false: { width: 252, height: 96, gap: 10, slices: 64 },
  true: { width: 148, height: 46, gap: 6, slices: 16 },
};

function makeFleet(box, opened) {
  let shown = []; // as `select` gives them
  let layout = LAYOUT[false];
  let columns = 1;
  let active = 0; // where the keyboard is
  let open = null; // the name of the node whose detail is seen
  const cards = new Map(); // place -> element

  function card(place) {
    const { node, devices } = shown[place];
    const slices = sum(devices, (device) => device.slices);
    const free = sum(devices, (device) => device.free);
    const held = sum(devices, (device) => device.held);
    const state =
      node.state === "ready" ? (node.agentSilent === null ? null : "agent silent") : node.state.replace("-", " ");
    const products = [...new Set(node.devices.map((device) => device.product))];
    const what =
      node.devices.length === 0
        ? "no GPUs offered"
        : products.length > 1
          ? `${products.length} products`
          : products[0].replace(/^NVIDIA /, "");
    const notes = node.notes.length;
    const said = [
      node.name,
      state ?? "ready",
      what,
      count(node.gpus.length, "GPU"),
      `${held} of ${slices} slices held`,
      `${free} free`,
      notes ? count(notes, "note") : null,
    ];
    const serious = node.notes.some((note) => SERIOUS.has(note.kind));
    return h(
      "div",
      {
        class: "card",
        role: "option",
        id: `node-${place}`,
        "aria-label": said.filter(Boolean).join(", "),
        "aria-posinset": place + 1,
        "aria-setsize": shown.length,
        "aria-selected": String(node.name === open),
        title: layout === LAYOUT[true] ? said.filter(Boolean).join(", ") : node.name,
      },
      h(
        "span",
        { class: "name" },
        h("b", {}, node.name),
        notes ? h("span", { class: serious ? "mark serious" : "mark mild" }, `${serious ? "!" : "•"} ${notes}`) : null,
      ),
      h("span", { class: "bar" }, bar(node.devices, devices, layout.slices)),
      layout === LAYOUT[true]
        ? null
        : h(
            "span",
            { class: "foot" },
            state
              ? chip(node.state === "cordoned" ? "mild" : "serious", state)
              : h("span", { class: "what" }, node.gpus.length ? `${node.gpus.length} × ${what}` : what),
            h("span", { class: "counts" }, `${held} / ${slices} held · ${free} free`),
          ),
    );
  }

  function draw() {
    const step = layout.height + layout.gap;
    columns = Math.max(1, Math.floor((box.clientWidth + layout.gap) / (layout.width + layout.gap)));
    const rows = Math.ceil(shown.length / columns);
    box.style.height = `${Math.max(0, rows * step - layout.gap)}px`;
    const top = box.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / step) - 2) * columns;
    const last = Math.min(shown.length, (Math.ceil((innerHeight - top) / step) + 2) * columns);
    const wanted = new Set();
    for (let place = first; place < last; place++) wanted.add(place);
    if (active < shown.length) wanted.add(active); // the keyboard's place exists wherever it is scrolled to
    for (const [place, element] of cards) {
      if (!wanted.has(place)) {
        element.remove();
        cards.delete(place);
      }
    }
    const width = (box.clientWidth - (columns - 1) * layout.gap) / columns;
    for (const place of wanted) {
      let element = cards.get(place);
      if (!element) {
        element = card(place);
        cards.set(place, element);
        const after = [...cards.keys()].filter((other) => other > place);
        box.insertBefore(element, after.length ? cards.get(Math.min(...after)) : null); // in order, for screen readers
      }
      element.style.width = `${width}px`;
      element.style.height = `${layout.height}px`;
      const [left, down] = [(place % columns) * (width + layout.gap), Math.floor(place / columns) * step];
      element.style.transform = `translate(${left}px, ${down}px)`;
      element.classList.toggle("active", place === active);
    }
    if (shown.length) box.setAttribute("aria-activedescendant", `node-${active}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function reveal() {
    const step = layout.height + layout.gap;
    const top = box.getBoundingClientRect().top + Math.floor(active / columns) * step;
    const above = document.getElementById("controls").getBoundingClientRect().bottom + 8;
    if (top < above) scrollBy(0, top - above);
    else if (top + step > innerHeight) scrollBy(0, top + step - innerHeight);
  }

  function move(place) {
    active = Math.max(0, Math.min(shown.length - 1, place));
    draw();
    reveal();
    draw();
  }

  function choose(place) {
    if (!shown.length) return;
    move(place);
    opened(shown[active].node.name);
  }

  let asked = false;
  function drawSoon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  }
  addEventListener("scroll", drawSoon, { passive: true });
  new ResizeObserver(drawSoon).observe(box);
  box.addEventListener("click", (event) => {
    const element = event.target.closest("[role=option]");
    if (element) choose(Number(element.id.slice("node-".length)));
  });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(innerHeight / (layout.height + layout.gap)) - 2) * columns;
    const moves = {
      ArrowRight: active + 1,
      ArrowLeft: active - 1,
      ArrowDown: active + columns,
      ArrowUp: active - columns,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: shown.length - 1,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const place = moves[event.key];
      if (place < 0 && event.key === "ArrowUp") return;
      move(place);
    } else if (event.key === "Enter" || event.key === " ") choose(active);
    else return;
    event.preventDefault();
  });

  return {
    // Other nodes, or other devices of them.
    show(found, compact) {
      const before = shown[active]?.node;
      shown = found;
      layout = LAYOUT[compact];
      box.classList.toggle("compact", compact);
      active = Math.max(
        0,
        shown.findIndex((one) => one.node === before),
      );
      for (const element of cards.values()) element.remove();
      cards.clear();
      draw();
    },
    // Marks the node whose detail is seen; null: none is.
    mark(name) {
      open = name;
      const place = shown.findIndex((one) => one.node.name === name);
      if (place >= 0) active = place;
      for (const [at, element] of cards) element.setAttribute("aria-selected", String(shown[at]?.node.name === name));
      draw();
    },
    reveal: () => move(active),
    // The node so many places further on; null: there is none.
    beside(step) {
      return shown[active + step]?.node.name ?? null;
    },
  };
}
