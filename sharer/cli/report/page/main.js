// Puts the page together. What is looked at is in the address behind #, so that a view can be kept and handed on.

const $ = (id) => document.getElementById(id);
const FILTERS = ["q", "product", "resource", "namespace", "state", "attention"];
const MANY = 500; // nodes from which on cards are small at first
const MOST_NOTES = 200; // that are listed at a time

function header(report) {
  $("observed").textContent = instant(report.observedAt);
  $("age").textContent = `(${age(report.observedAt)})`;
  for (const radio of document.getElementsByName("theme")) {
    radio.addEventListener("change", () => document.documentElement.setAttribute("data-theme", radio.value));
  }
  $("missing").hidden = report.missing.length === 0;
  $("missing")
    .querySelector("ul")
    .append(...report.missing.map((one) => h("li", {}, h("b", {}, one.source), `: ${one.problem}`)));
  $("unknown").hidden = report.unknown.length === 0;
  $("unknown").querySelector("summary").textContent = `What this report could not know (${report.unknown.length})`;
  $("unknown")
    .querySelector("ul")
    .append(...report.unknown.map((text) => h("li", {}, text)));
}

function tiles(fleet) {
  const told = (number, word) => (number ? `${figure(number)} ${word}` : null);
  const all = [
    ["Nodes", fleet.nodes, [told(fleet.notReady, "not ready"), told(fleet.cordoned, "cordoned")]],
    [
      "Agents",
      fleet.withAgent,
      [
        told(fleet.agentsSilent, "silent"),
        fleet.nodes > fleet.withAgent && `${count(fleet.nodes - fleet.withAgent, "node")} without`,
      ],
    ],
    ["GPUs", fleet.gpus, [fleet.gpus ? null : "no agent tells"]],
    ["Pods", fleet.pods, [fleet.pods === null ? null : "that ask for GPUs"]],
  ];
  $("tiles").append(
    ...all.map(([name, number, more]) =>
      h(
        "div",
        {},
        h("dt", {}, name),
        h("dd", {}, h("b", {}, known(number)), " ", h("span", {}, more.filter(Boolean).join(", "))),
      ),
    ),
  );
}

function totals(report) {
  const has = (name) => report.totals.some((one) => one[name]);
  const amounts = [
    ["nodes", "Nodes"],
    ["gpus", "GPUs"],
    ["slices", "Slices"],
    ["held", "Held"],
    ["free", "Free"],
    has("outOfReach") && ["outOfReach", "Out of reach"],
    has("draining") && ["draining", "Draining"],
    has("quarantined") && ["quarantined", "Quarantined"],
  ].filter(Boolean);
  const sizes = [
    ["largestFreeBytes", "Largest free"],
    ["promisedBytes", "Promised"],
    has("usedBytes") && ["usedBytes", "Used"],
    ["memoryBytes", "Memory"],
  ].filter(Boolean);
  const unsure = new Set(["held", "free", "outOfReach"]);
  const columns = [
    { label: "Resource", wide: true },
    { label: "Slices in use", wide: true },
    ...[...amounts, ...sizes].map(([, label]) => ({ label, number: true })),
  ];
  const rows = report.totals.map((one) => [
    [
      h("b", {}, one.resource ?? "nothing offered"),
      h("span", { class: "small block" }, one.product ?? "unknown product"),
    ],
    totalBar(one),
    ...amounts.map(([name]) => (one[name] === null ? (unsure.has(name) ? "unknown" : null) : figure(one[name]))),
    ...sizes.map(([name]) => bytes(one[name])),
  ]);
  $("totals").append(table("Totals by resource and product", columns, rows));
}

function totalBar(one) {
  const parts = partsOfTotal(one);
  const cells = Object.keys(PARTS)
    .filter((part) => parts[part])
    .map((part) => sized(h("i", { class: `part ${part}` }), parts[part]));
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": spoken(parts) || "no slices" },
    h("span", { class: "device" }, cells),
  );
}

function options(report, form) {
  const all = report.nodes.flatMap((node) => node.devices);
  const names = (values) => [...new Set(values)].sort().map((name) => [name, name]);
  const fill = (name, every, entries) =>
    form[name].append(
      ...(every ? [new Option(every, "")] : []),
      ...entries.map(([value, label]) => new Option(label, value)),
    );
  fill("product", "All", names(all.map((device) => device.product)));
  fill("resource", "All", names(all.flatMap((device) => [...device.resources])));
  fill(
    "namespace",
    "All",
    names(
      report.nodes.flatMap((node) => [
        ...node.pods.map((pod) => pod.namespace),
        ...node.devices.flatMap((device) => [...device.namespaces]),
      ]),
    ),
  );
  const states = Object.entries(STATES).filter(([, [, has]]) =>
    report.nodes.some((node) => has(node, null) || node.devices.some((device) => has(node, device))),
  );
  fill(
    "state",
    "All",
    states.map(([value, [label]]) => [value, label]),
  );
  fill(
    "sort",
    null,
    Object.entries(SORTS).map(([value, [label]]) => [value, label]),
  );
}

function start(report) {
  const form = $("controls");
  const chips = $("attention").querySelector(".chips");
  const wide = matchMedia("(min-width: 1000px)");
  let kind = "any"; // of notes, where only nodes with notes are shown
  let open = null; // the name of the node whose detail is seen

  header(report);
  tiles(report.fleet);
  totals(report);
  options(report, form);
  $("report").hidden = false;
  $("loading").remove();

  const kinds = [...Map.groupBy(report.notes, (note) => note.kind)].sort(
    ([a, one], [b, other]) => SERIOUS.has(b) - SERIOUS.has(a) || other.length - one.length,
  );
  $("attention").hidden = kinds.length === 0;
  chips.append(
    ...kinds.map(([name, notes]) =>
      h(
        "button",
        {
          type: "button",
          class: `chip ${SERIOUS.has(name) ? "serious" : "mild"}`,
          "aria-pressed": "false",
          value: name,
          onclick: () => {
            form.attention.checked = !form.attention.checked || kind !== name;
            kind = name;
            update();
          },
        },
        sentence(name),
        " ",
        h("b", {}, figure(notes.length)),
      ),
    ),
  );

  const fleet = makeFleet($("fleet"), (name) => show(name, true));

  const wantedNow = () => ({
    ...Object.fromEntries(new FormData(form)),
    attention: form.attention.checked ? kind : "",
  });

  // Draws everything that depends on the filters.
  function update() {
    if (!form.attention.checked) kind = "any";
    const wanted = wantedNow();
    const found = select(report, wanted);
    const devices = found.flatMap((one) => one.devices);
    const [slices, held, free] = ["slices", "held", "free"].map((name) => sum(devices, (device) => device[name]));
    const some = found.length === report.nodes.length ? "" : ` of ${figure(report.nodes.length)}`;
    const gpus = devices.filter((device) => device.gpu).length;
    $("shown").textContent =
      `${figure(found.length)}${some} nodes · ${count(gpus, "GPU")} · ` +
      `${count(slices, "slice")}: ${figure(held)} held, ${figure(free)} free`;
    $("none").hidden = found.length > 0;
    $("none").textContent = report.nodes.length
      ? "No node passes these filters."
      : "No node here has GPUs, or should have.";
    $("clear").hidden = !FILTERS.some((name) => wanted[name]);
    for (const button of chips.children) button.setAttribute("aria-pressed", String(button.value === wanted.attention));
    listNotes(wanted.attention);
    fleet.show(found, form.compact.checked);
    remember(wanted);
  }

  function listNotes(attention) {
    const notes = attention && attention !== "any" ? report.notes.filter((note) => note.kind === attention) : [];
    const more = notes.length - MOST_NOTES;
    $("notes").hidden = notes.length === 0;
    $("notes").replaceChildren(
      ...notes.slice(0, MOST_NOTES).map((note) => noteLine(note, (name) => show(name, true))),
      ...(more > 0 ? [h("li", {}, `and ${figure(more)} more: each node shows its own`)] : []),
    );
  }

  function remember(wanted) {
    const parts = new URLSearchParams(FILTERS.filter((name) => wanted[name]).map((name) => [name, wanted[name]]));
    if (wanted.sort !== "node") parts.set("sort", wanted.sort);
    if (open !== null) parts.set("node", open);
    history.replaceState(null, "", `#${parts}`);
  }

  function recall() {
    const parts = new URLSearchParams(location.hash.slice(1));
    for (const name of ["q", "product", "resource", "namespace", "state"]) form[name].value = parts.get(name) ?? "";
    form.sort.value = parts.get("sort") ?? "node";
    // What the report does not have (any more) is not asked for.
    for (const choice of form.querySelectorAll("select")) choice.selectedIndex = Math.max(0, choice.selectedIndex);
    kind = kinds.some(([name]) => name === parts.get("attention")) ? parts.get("attention") : "any";
    form.attention.checked = parts.has("attention");
    open = null;
    update();
    show(report.byName.has(parts.get("node")) ? parts.get("node") : null, false);
  }

  // The detail of a node; null: none. Beside the nodes where there is room, else over them.
  function show(name, focus) {
    open = name;
    const detail = $("detail");
    detail.hidden = name === null;
    $("panes").classList.toggle("split", name !== null);
    detail.replaceChildren(...(name === null ? [] : nodeDetail(report.byName.get(name), go).filter(Boolean)));
    detail.scrollTop = 0;
    fleet.mark(name);
    cover();
    if (focus) (name === null ? $("fleet") : detail).focus({ preventScroll: true });
    if (name !== null && wide.matches) fleet.reveal();
    remember(wantedNow());
  }

  function go(step) {
    if (step === 0) return show(null, true);
    const name = fleet.beside(step);
    if (name !== null) show(name, true);
  }

  // Where the detail covers the page, nothing below it can be reached.
  function cover() {
    const covers = open !== null && !wide.matches;
    for (const element of [
      $("top"),
      $("fleet").parentElement,
      ...$("report").children,
      ...$("controls").parentElement.children,
    ]) {
      if (!element.contains($("detail"))) element.inert = covers;
    }
    document.documentElement.classList.toggle("covered", covers);
  }
  wide.addEventListener("change", cover);
  $("skip").addEventListener("click", (event) => {
    event.preventDefault(); // what is behind # is the view
    $("fleet").focus();
  });

  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    const [sort, compact] = [form.sort.value, form.compact.checked]; // no filters: they stay
    setTimeout(() => {
      form.sort.value = sort;
      form.compact.checked = compact;
      kind = "any";
      update();
      form.q.focus();
    });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input[type=search]")) {
      event.preventDefault();
      form.q.focus();
      form.q.select();
    } else if (event.key === "Escape" && open !== null && !event.target.closest("input[type=search], select"))
      show(null, true);
  });
  addEventListener("hashchange", recall);
  new ResizeObserver(() => document.documentElement.style.setProperty("--controls", `${form.offsetHeight}px`)).observe(
    form,
  );

  $("legend").append(...legend(report));
  form.compact.checked = report.nodes.length >= MANY;
  recall();
}

// Only the states that occur are explained.
function legend(report) {
  const parts = [
    ...report.totals.map(partsOfTotal),
    ...report.nodes.flatMap((node) => node.devices.map((device) => device.parts)),
  ];
  const seen = new Set(parts.flatMap((some) => Object.keys(some).filter((part) => some[part])));
  return Object.entries(PARTS)
    .filter(([part]) => seen.has(part))
    .map(([part, [letter, words]]) =>
      h(
        "li",
        {},
        h("span", { class: `part ${part}`, "aria-hidden": "true" }, h("b", {}, letter)),
        " ",
        h("span", {}, wordOf(part), h("span", { class: "long" }, words.slice(wordOf(part).length))),
      ),
    );
}

readReport()
  .then(start)
  .catch((error) => {
    ($("loading") ?? document.body.appendChild(h("p", { class: "banner" }))).textContent =
      `This report cannot be shown here: ${error}. A browser of 2024 or newer is needed.`;
    throw error;
  });
