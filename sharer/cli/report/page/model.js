"use strict";
// The report as it is looked at. It is the document of `-o json`, gzipped; null in it is "not known", never 0.
// Its names are written by tenants: they reach the page as text, and never as HTML.

const OWNING = new Set(["allocated", "held", "releasing"]); // a holder in any other state only has something on a slice

// What a slice can be, in the order in which they stand in a bar. No colour without a pattern and a letter.
const PARTS = {
  held: ["H", "held"],
  draining: ["D", "draining: held, of an earlier cut"],
  quarantined: ["Q", "quarantined: something of a former owner may live"],
  fault: ["X", "at fault"],
  waiting: ["W", "not given out"],
  away: ["O", "out of reach: its node takes no pods"],
  unknown: ["?", "not known"],
  free: ["F", "free"],
};

const wordOf = (part) => PARTS[part][1].split(":")[0];

const STATES = {
  ready: ["Node ready", (node) => node.state === "ready"],
  "not-ready": ["Node not ready", (node) => node.state === "not-ready"],
  cordoned: ["Node cordoned", (node) => node.state === "cordoned"],
  gone: ["Node gone", (node) => node.state === "gone"],
  unknown: ["Node's state not known", (node) => node.state === "unknown"],
  silent: ["Agent silent", (node) => node.agentSilent !== null],
  agentless: ["No agent", (node) => node.agent === null],
  free: ["Has free slices", (_, device) => device?.free > 0],
  held: ["Has held slices", (_, device) => device?.held > 0],
  draining: ["Has draining slices", (_, device) => device?.parts.draining > 0],
  quarantined: ["Has quarantined slices", (_, device) => device?.parts.quarantined > 0],
  unhealthy: ["GPU not healthy", (_, device) => Boolean(device?.gpu) && device.gpu.health !== "healthy"],
  unverified: ["Limits not verified", (_, device) => Boolean(device?.gpu?.notVerified)],
};

const SORTS = {
  node: ["Node", null],
  free: ["Most free slices", (one) => sum(one.devices, (device) => device.free)],
  held: ["Most held slices", (one) => sum(one.devices, (device) => device.held)],
  largest: [
    "Largest free block",
    (one) => Math.max(-1, ...one.devices.map((device) => device.gpu?.largestFreeBytes ?? -1)),
  ],
  notes: ["Most notes", (one) => one.node.notes.length],
};

const SERIOUS = new Set([
  "not-ready",
  "gone",
  "agent-silent",
  "unhealthy",
  "over",
  "leaked",
  "unauthorised",
  "foreign",
  "contested",
  "unserved",
  "over-promise",
  "policy-refused",
]);

async function readReport() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const report = JSON.parse(await new Response(unpacked).text());
  const byName = new Map(report.nodes.map((node) => [node.name, node]));
  for (const node of report.nodes) {
    node.notes = [];
    node.devices = devicesOf(node);
  }
  for (const note of report.notes) byName.get(note.node)?.notes.push(note);
  report.byName = byName;
  return report;
}

// A device is what slices are cut from: a GPU or MIG device that an agent tells of, or a resource that no agent offers.
function devicesOf(node) {
  const gpus = node.gpus.map((gpu) => ({
    gpu,
    offer: null,
    name: `GPU ${gpu.index ?? "?"}${gpu.migIndex === null ? "" : `:${gpu.migIndex}`}`,
    product: gpu.product ?? "unknown product",
    resources: new Set([gpu.resource, ...gpu.holders.map((one) => one.resource)].filter((name) => name !== null)),
    namespaces: new Set(gpu.holders.map((one) => one.namespace).filter((name) => name !== null)),
    slices: gpu.slices,
    held: gpu.held,
    free: gpu.free,
    parts: partsOfGpu(gpu),
  }));
  const offers = node.resources
    .filter((offer) => offer.slices === null)
    .map((offer) => ({
      gpu: null,
      offer,
      name: offer.name,
      product: node.product ?? "unknown product",
      resources: new Set([offer.name]),
      namespaces: new Set(podsAsking(node, offer.name).map((pod) => pod.namespace)),
      slices: offer.allocatable ?? 0,
      held: offer.requested ?? 0,
      free: offer.free ?? 0,
      parts: partsOfOffer(offer),
    }));
  return [...gpus, ...offers];
}

function partsOfGpu(gpu) {
  const parts = {
    held: gpu.held - (gpu.draining ?? 0),
    draining: gpu.draining ?? 0,
    quarantined: gpu.quarantined ?? 0,
    away: gpu.outOfReach,
    free: gpu.free,
  };
  const rest = Math.max(0, gpu.slices - parts.held - parts.quarantined - parts.away - parts.free);
  return { ...parts, [gpu.health === "unhealthy" ? "fault" : "waiting"]: rest };
}

function partsOfOffer(offer) {
  const slices = offer.allocatable ?? 0;
  const known = offer.requested !== null;
  return {
    held: known ? Math.min(offer.requested, slices) : 0,
    fault: offer.allocatable === null ? 0 : Math.max(0, (offer.capacity ?? 0) - slices),
    away: offer.outOfReach ?? 0,
    unknown: known ? 0 : slices,
    free: offer.free ?? 0,
  };
}

function partsOfTotal(one) {
  const draining = one.draining ?? 0;
  const parts = {
    held: (one.held ?? 0) - draining,
    draining,
    quarantined: one.quarantined ?? 0,
    away: one.outOfReach ?? 0,
    free: one.free ?? 0,
  };
  const rest = Math.max(0, one.slices - parts.held - parts.quarantined - parts.away - parts.free);
  return { ...parts, [one.held === null ? "unknown" : "waiting"]: rest };
}

const podsAsking = (node, resource) => node.pods.filter((pod) => pod.asks.some((ask) => ask.resource === resource));

// The nodes that pass the filters, each with those of its devices that do: [{node, devices}].
function select(report, wanted) {
  const terms = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
  const byDevice = wanted.product || wanted.resource || wanted.state;
  const [, hasState] = STATES[wanted.state] ?? ["", () => true];
  const found = [];
  for (const node of report.nodes) {
    if (wanted.attention && !node.notes.some((note) => wanted.attention === "any" || note.kind === wanted.attention))
      continue;
    if (terms.length && !terms.every((term) => textOf(node).includes(term))) continue;
    const devices = node.devices.filter(
      (device) =>
        (!wanted.product || device.product === wanted.product) &&
        (!wanted.resource || device.resources.has(wanted.resource)) &&
        (!wanted.namespace || device.namespaces.has(wanted.namespace)) &&
        hasState(node, device),
    );
    // A node without devices, or whose pods hold none of them yet, passes by what is known of the node itself.
    const bare =
      !wanted.product &&
      !wanted.resource &&
      (node.devices.length === 0 || !byDevice) &&
      hasState(node, null) &&
      (!wanted.namespace || node.pods.some((pod) => pod.namespace === wanted.namespace));
    if (devices.length || bare) found.push({ node, devices });
  }
  const [, size] = SORTS[wanted.sort];
  if (size) {
    const sizes = new Map(found.map((one) => [one, size(one)]));
    found.sort((a, b) => sizes.get(b) - sizes.get(a)); // stable: what is equal stays in the order of the nodes
  }
  return found;
}

// Everything of a node that can be searched for. Made when it is first needed.
function textOf(node) {
  node.text ??= [
    node.name,
    node.product,
    ...node.gpus.flatMap((gpu) => [gpu.uuid, gpu.product, gpu.migProfile, gpu.resource]),
    ...node.gpus.flatMap((gpu) => gpu.holders.map((one) => `${one.namespace}/${one.pod}/${one.container} ${one.uid}`)),
    ...node.resources.map((offer) => offer.name),
    ...node.pods.map((pod) => `${pod.namespace}/${pod.name} ${pod.uid}`),
  ]
    .join("\n")
    .toLowerCase();
  return node.text;
}

// ---- words

const sum = (items, size) => items.reduce((total, item) => total + size(item), 0);
const figure = (number) => number.toLocaleString("en");
const count = (number, word) => `${figure(number)} ${word}${number === 1 ? "" : "s"}`;
const known = (number) => (number === null ? "unknown" : figure(number));

function bytes(amount) {
  if (amount === null) return "–";
  for (const [unit, power] of [
    ["TiB", 4],
    ["GiB", 3],
    ["MiB", 2],
    ["KiB", 1],
  ]) {
    if (amount >= 1024 ** power) return `${(amount / 1024 ** power).toFixed(1).replace(/\.0$/, "")} ${unit}`;
  }
  return `${amount} B`;
}

const instant = (text) => text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC");

function age(text) {
  const seconds = (Date.parse(text) - Date.now()) / 1000;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  for (const [unit, size] of [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
  ]) {
    if (Math.abs(seconds) >= size) return words.format(Math.round(seconds / size), unit);
  }
  return "just now";
}

const sentence = (kind) => kind.charAt(0).toUpperCase() + kind.slice(1).replaceAll("-", " ");
const ownerOf = (holder) => (holder.pod === null ? "somebody unknown" : `${holder.namespace}/${holder.pod}`);
