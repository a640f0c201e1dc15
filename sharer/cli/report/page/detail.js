// One node: what it runs on, its GPUs with their slices, and who holds them.

function nodeDetail(node, go) {
  const gpus = node.devices.filter((device) => device.gpu);
  const offers = node.devices.filter((device) => device.offer);
  return [
    h(
      "header",
      {},
      h("h2", { id: "detail-title" }, node.name),
      h(
        "span",
        { class: "buttons" },
        h("button", { type: "button", "aria-label": "Previous node", onclick: () => go(-1) }, "‹"),
        h("button", { type: "button", "aria-label": "Next node", onclick: () => go(1) }, "›"),
        h("button", { type: "button", class: "close", onclick: () => go(0) }, "Close"),
      ),
    ),
    facts(node),
    node.notes.length
      ? h(
          "ul",
          { class: "notes", "aria-label": "Notes" },
          node.notes.map((note) => noteLine(note, null)),
        )
      : null,
    counted(node),
    ...gpus.map(gpuDetail),
    ...offers.map((device) => offerDetail(node, device)),
    asking(node, gpus.length > 0),
  ];
}

function facts(node) {
  const policy = node.policy;
  const state = [
    chip(node.state === "ready" ? "good" : node.state === "cordoned" ? "mild" : "serious", sentence(node.state)),
    node.stateReason ? ` ${node.stateReason}` : "",
  ];
  const agent =
    node.agent === null
      ? ["none publishes here"]
      : [`sharer ${node.agent}`, node.agentSilent ? [", ", chip("serious", "silent"), ` ${node.agentSilent}`] : ""];
  const rows = [
    ["State", state],
    ["Agent", agent],
    ["Driver", node.driver],
    ["Injection", node.injection],
    ["Policy", policy && [policy.inForce ?? "none in force", policy.hash ? ` (${policy.hash.slice(0, 12)})` : ""]],
    ["Policy wanted", policy?.wanted ?? node.policyLabel],
    ["Policy staged", policy?.staged && [`${policy.staged.source}, takes effect at `, time(policy.staged.appliesAt)]],
    ["Policy refused", policy?.refused],
    ["Policy not read", policy?.unread],
    ["Held back", node.heldBack ? "the label sharer.dev/hold keeps the policy in force" : null],
    ["Last change", node.observedAt && time(node.observedAt)],
  ];
  return h(
    "dl",
    { class: "facts" },
    rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, ...[value].flat(2))]),
  );
}

// What the scheduler counts beside what the agent counts.
function counted(node) {
  if (!node.resources.length) return null;
  const numbers = ["slices", "held", "free", "outOfReach", "requested", "allocatable", "overBy"];
  const labels = ["Slices", "Held", "Free", "Out of reach", "Requested", "Allocatable", "Over by"];
  const columns = [{ label: "Resource", wide: true }, ...labels.map((label) => ({ label, number: true }))];
  const over = node.resources.some((one) => one.overBy);
  if (!over) columns.pop();
  return h(
    "section",
    {},
    h("h3", {}, "Resources"),
    table(
      "Resources of the node: as its agent counts, and as the scheduler does",
      columns,
      node.resources.map((one) => [
        h("code", {}, one.name),
        ...numbers.slice(0, over ? 7 : 6).map((name) => (one[name] === null ? null : figure(one[name]))),
      ]),
    ),
  );
}

function gpuDetail(device) {
  const { gpu } = device;
  const health = chip({ healthy: "good", unhealthy: "serious" }[gpu.health] ?? "mild", sentence(gpu.health));
  const said = [
    gpu.healthReason,
    gpu.waiting,
    gpu.offersNothing,
    gpu.draining ? `${gpu.draining} of the held slices are of an earlier cut, and drain` : null,
  ].filter(Boolean);
  const cut = [gpu.strategy, gpu.resource].filter(Boolean).join(" · ");
  return h(
    "section",
    { class: "gpu" },
    h(
      "h3",
      {},
      device.name,
      " ",
      h("span", { class: "product" }, device.product, gpu.migProfile ? ` ${gpu.migProfile}` : ""),
      " ",
      health,
    ),
    h("p", { class: "small" }, h("code", {}, gpu.uuid), cut ? h("br") : null, cut),
    said.length
      ? h(
          "ul",
          { class: "notes" },
          said.map((text) => h("li", { class: gpu.health === "unhealthy" ? "serious" : "mild" }, text)),
        )
      : null,
    memory(gpu),
    sliceRow(device, blocksOfGpu(device)),
    holderTable(device),
  );
}

function memory(gpu) {
  if (gpu.memoryBytes === null) return null;
  const amounts = [
    gpu.promisedBytes === null ? null : `${bytes(gpu.promisedBytes)} promised`,
    gpu.usedBytes === null ? null : `${bytes(gpu.usedBytes)} used`,
  ];
  const block = gpu.largestFreeBytes ? ` · largest free block ${bytes(gpu.largestFreeBytes)}` : "";
  const text = `${amounts.filter(Boolean).join(", ")} of ${bytes(gpu.memoryBytes)}${block}`;
  const share = (amount) => `${Math.min(100, (100 * (amount ?? 0)) / gpu.memoryBytes)}%`;
  const promised = h("i", { class: "promised" });
  const used = h("i", { class: "used" });
  promised.style.width = share(gpu.promisedBytes);
  used.style.width = share(gpu.usedBytes);
  return h(
    "div",
    { class: "memory" },
    h("span", { class: "track", "aria-hidden": "true" }, promised, used),
    h("span", { class: "small" }, `Memory: ${text}`),
  );
}

const replicaOf = (holder) => holder.id.split("::")[1]?.match(/^(?:[a-z]+-)?(\d+)/)?.[1] ?? null;

// Slices that nobody holds.
const others = (parts) =>
  ["fault", "waiting", "away", "unknown", "free"].flatMap((part) => repeat(parts[part] ?? 0, [part, wordOf(part)]));

// [state, words, more words]: slices whose owner is known by name come first, the others as they are counted.
function blocksOfGpu({ gpu, parts }) {
  const named = (wanted, part) =>
    gpu.holders.filter((one) => wanted(one.state)).map((one) => [part, one.pod ?? ownerOf(one), ownerOf(one)]);
  const held = named((state) => OWNING.has(state), "held");
  const quarantined = named((state) => state === "quarantined", "quarantined").slice(0, parts.quarantined);
  return [
    ...held,
    ...repeat(gpu.held - held.length, ["held", "not listed here"]),
    ...quarantined,
    ...repeat(parts.quarantined - quarantined.length, ["quarantined", "not listed here"]),
    ...others(parts),
  ];
}

function sliceRow(device, blocks) {
  if (!blocks.length) return null;
  return h(
    "div",
    {
      class: `slices${blocks.length > 8 ? " many" : ""}`,
      role: "img",
      "aria-label": `${device.name}, slices: ${spoken(device.parts)}`,
    },
    blocks.map(([part, words, more]) =>
      h("span", { class: `part ${part}`, title: more ?? words }, h("b", {}, PARTS[part][0]), h("span", {}, words)),
    ),
  );
}

function holderTable({ gpu, name }) {
  if (!gpu.holders.length) return null;
  const used = gpu.holders.some((one) => one.usedBytes !== null);
  const columns = [
    { label: "Slice" },
    { label: "Owner", wide: true },
    { label: "State" },
    { label: "Promise", number: true },
    used && { label: "Used", number: true },
    { label: "Limit", wide: true },
  ].filter(Boolean);
  const rows = gpu.holders
    .toSorted((a, b) => Number(replicaOf(a) ?? -1) - Number(replicaOf(b) ?? -1))
    .map((one) => [
      h("span", { title: one.id }, replicaOf(one) ?? one.id),
      [h("b", {}, ownerOf(one)), one.container === null ? null : h("span", { class: "small" }, ` ${one.container}`)],
      [
        h("span", { title: one.reason }, sentence(one.state)),
        one.state === "held" ? null : h("span", { class: "small block" }, one.reason),
      ],
      bytes(one.promiseBytes),
      ...(used ? [bytes(one.usedBytes)] : []),
      limitOf(one, gpu),
    ]);
  return table(`Who holds slices of ${name}`, columns, rows);
}

const NOT_HELD = "; not held to its promise: "; // after which an agent says, in its reason, why not

function limitOf(holder, gpu) {
  if (holder.heldBy !== null)
    return [
      chip("good", `Verified by ${holder.heldBy}`),
      holder.verifiedAt ? [" since ", time(holder.verifiedAt)] : null,
    ].flat();
  if (!OWNING.has(holder.state)) return null;
  if (gpu.verified === null) return chip("mild", "Not looked at");
  const [, why] = holder.reason.split(NOT_HELD);
  return [chip("serious", "Not verified"), why ? h("span", { class: "small block" }, why) : null];
}

function offerDetail(node, device) {
  const pods = podsAsking(node, device.name);
  const blocks = [
    ...pods.flatMap((pod) => repeat(requestedOf(pod, device.name), ["held", pod.name, `${pod.namespace}/${pod.name}`])),
    ...others(device.parts),
  ];
  return h(
    "section",
    { class: "gpu" },
    h("h3", {}, device.name, " ", h("span", { class: "product" }, device.product)),
    h("p", { class: "small" }, "No agent offers it: this is what pods ask for. Which GPU each is on is not known."),
    sliceRow(device, blocks),
  );
}

const requestedOf = (pod, resource) =>
  sum(
    pod.asks.filter((ask) => ask.resource === resource),
    (ask) => ask.requested,
  );

function asking(node, folded) {
  if (!node.pods.length) return null;
  const rows = node.pods.map((pod) => [
    h("b", {}, `${pod.namespace}/${pod.name}`),
    [pod.phase, pod.deleting ? ", in deletion" : "", pod.static ? ", static" : ""].join(""),
    pod.asks
      .map(
        (ask) => `${ask.requested} ${ask.resource}${ask.running === ask.requested ? "" : ` (${ask.running} running)`}`,
      )
      .join(", "),
  ]);
  const title = `Pods that ask for GPUs (${node.pods.length})`;
  return h(
    "details",
    { open: !folded },
    h("summary", {}, title),
    table(title, [{ label: "Pod", wide: true }, { label: "Phase" }, { label: "Asks for", wide: true }], rows),
  );
}
