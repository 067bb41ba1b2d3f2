// The cluster view: nodes with their jobs, use and health, and actions for admins.

import { may, request } from "../api.js";
import * as format from "../format.js";
import { on } from "../live.js";
import { hue, loadNodes, nodes, tenants } from "../model.js";
import { Dialog, Empty, Figure, JobLink, Meter, Shape, State, Tenant, Trouble, say } from "../parts.js";
import { coalesced, html, memo, own, useCell, useEffect, useMemo, useState } from "../ui.js";

const DENSE = 24; // above this number of nodes, cards are small

export function ClusterView() {
  const known = useCell(nodes), teams = useCell(tenants);
  const [problem, setProblem] = useState(null);
  const [open, setOpen] = useState(null);
  const load = useMemo(() => coalesced(() => loadNodes().then(() => setProblem(null), setProblem), 1000), []);
  useEffect(() => {
    document.title = "Cluster · Fairlead";
    load();
    const offs = [on("resync", load), on("event", (event) => event.node && load())];
    return () => {
      offs.forEach((off) => off());
      load.cancel();
    };
  }, []);
  const all = useMemo(() => [...(known?.values() ?? [])].sort(format.byName), [known]);
  const chosen = open && known?.get(open);
  return html`
    <div class="head">
      <h1 tabindex="-1">Cluster</h1>
      <${Legend} nodes=${all} teams=${teams} />
    </div>
    <${Trouble} problem=${problem} again=${load} />
    ${known === null ? (problem ? null : html`<p class="loading">Loading nodes …</p>`) : html`
      <${Summary} nodes=${all} teams=${teams} />
      ${all.length === 0 ? html`<${Empty} title="No nodes">Start nodes: <code>fairlead up --nodes 4</code><//>` : null}
      <ul class=${`nodes ${all.length > DENSE ? "dense" : ""}`} aria-label="Nodes">
        ${all.map((node) => html`<${Node} key=${node.name} node=${node} open=${setOpen} colours=${teams} />`)}
      </ul>`}
    ${chosen ? html`<${NodeDialog} node=${chosen} onClose=${() => setOpen(null)} />` : null}
  `;
}

const RESTING = new Set(["asleep", "waking"]);

function Summary({ nodes: all, teams }) {
  const sum = (pick) => all.reduce((total, node) => total + pick(node), 0);
  const up = all.filter((node) => node.state !== "lost");
  const devices = sum((node) => (node.state === "lost" ? 0 : node.devices)), used = sum((node) => node.devices_used);
  const cores = up.reduce((total, node) => total + node.cpu, 0);
  const busy = up.reduce((total, node) => total + node.cpu * (node.cpu_fraction ?? 0), 0);
  const away = all.length - up.length, resting = all.filter((node) => RESTING.has(node.state)).length;
  const count = (name) => (teams ?? []).reduce((total, team) => total + team[name], 0);
  return html`<dl class="figures">
    <${Figure} label="Nodes" value=${`${up.length - resting} of ${all.length}`}
      note=${[away ? `${away} lost` : "", resting ? `${resting} asleep` : ""].filter(Boolean).join(", ") || "up"}
      tone=${away ? "bad" : ""} />
    <${Figure} label="Devices in use" value=${`${used} of ${devices}`} note=${format.percent(devices ? used / devices : 0)} />
    <${Figure} label="CPU" value=${format.percent(cores ? busy / cores : 0)} note=${`of ${format.cores(cores)}`} />
    <${Figure} label="Memory" value=${format.bytes(sum((node) => node.memory_used_bytes ?? 0))}
      note=${`of ${format.bytes(sum((node) => node.memory_bytes))}`} />
    <${Figure} label="Running jobs" value=${format.number(count("running"))} />
    <${Figure} label="Queued jobs" value=${format.number(count("queued"))} />
  </dl>`;
}

function Legend({ nodes: all, teams }) {
  const held = new Map();
  for (const node of all) for (const slot of node.slots) held.set(slot.tenant, (held.get(slot.tenant) ?? 0) + 1);
  const others = held.get(null);
  return html`<ul class="legend" aria-label="Devices in use by tenant">
    <li class="dim">Devices in use:</li>
    ${(teams ?? []).slice(0, 12).map(
      (team) => html`<li key=${team.name}><${Tenant} name=${team.name} /> <b>${held.get(team.name) ?? 0}</b></li>`,
    )}
    ${others ? html`<li><span class="tenant t-none"><i class="swatch" aria-hidden="true"></i>others</span> <b>${others}</b></li>` : null}
  </ul>`;
}

const Node = memo(({ node, open }) => html`<li class=${`node n-${node.state}`}>
  <div class="node-head">
    <button class="node-name" onClick=${() => open(node.name)} aria-haspopup="dialog">${node.name}</button>
    <${State} of=${node.state} />
  </div>
  <${Slots} node=${node} />
  <dl class="node-use">
    <div><dt>CPU</dt><dd><${Meter} part=${node.cpu_fraction} tone=${heat(node.cpu_fraction)} />
      <span>${format.percent(node.cpu_fraction)}</span></dd></div>
    <div><dt>RAM</dt><dd><${Meter} part=${node.memory_used_bytes / node.memory_bytes}
        tone=${heat(node.memory_used_bytes / node.memory_bytes)} />
      <span>${format.bytes(node.memory_used_bytes)}</span></dd></div>
  </dl>
  <p class="node-facts">${facts(node).map((fact) => html`<span key=${fact}>${fact}</span>`)}</p>
</li>`);

function facts(node) {
  const shown = [`${node.device_type} × ${node.devices}`, format.cores(node.cpu)];
  if (node.temperature_c != null) shown.push(`${Math.round(node.temperature_c)} °C`);
  if (node.power_w != null) shown.push(`${Math.round(node.power_w)} W`);
  shown.push(node.isolation === "none" ? "not isolated" : node.isolation);
  return shown;
}

const heat = (part) => (part > 0.95 ? "hot" : "");

// One box per device; a used one shows its tenant's colour and, if visible to the user, a link to its job.
function Slots({ node }) {
  const used = new Map(node.slots.map((slot) => [slot.device, slot]));
  const places = Array.from({ length: Math.max(node.devices, node.slots.length) }, (_, place) => place);
  return html`<ol class="slots" aria-label=${`Devices of ${node.name}`}>
    ${places.map((place) => html`<${Slot} key=${place} slot=${used.get(place)} place=${place} />`)}
  </ol>`;
}

function Slot({ slot, place }) {
  if (!slot) return html`<li class="slot free"><span class="sr">device ${place}: free</span></li>`;
  if (!slot.job) return html`<li class="slot t-none" title="in use by another tenant"><span aria-hidden="true">··</span>
    <span class="sr">device ${place}: in use by another tenant</span></li>`;
  const name = slot.job.replace(/-[a-z0-9]+$/, "");
  return html`<li class=${`slot ${hue(slot.tenant)}`}>
    <a href=${`#/job/${encodeURIComponent(slot.job)}`} title=${`${slot.job} of ${slot.tenant ?? "?"}, ${slot.worker}`}
      aria-label=${`device ${place}: ${slot.job} of ${slot.tenant ?? "an unknown tenant"}`}>${name}</a>
  </li>`;
}

// ---------------------------------------------------------------- one node

const ACTIONS = {
  cordon: ["Cordon", "Running jobs stay; no new ones start here."],
  drain: ["Drain", "Running jobs move to other nodes with their state; no new ones start here."],
  uncordon: ["Uncordon", "New jobs may start here again."],
};
const POSSIBLE = {
  ready: ["cordon", "drain"], outdated: ["cordon", "drain"], cordoned: ["uncordon", "drain"],
  asleep: ["cordon", "drain"], waking: ["cordon", "drain"],
  draining: ["uncordon"], drained: ["uncordon"], lost: [],
};

function NodeDialog({ node, onClose }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const act = async (action) => {
    setBusy(true);
    try {
      const fresh = await request(`nodes/${encodeURIComponent(node.name)}/${action}`, { method: "POST" });
      nodes.set(new Map(nodes.get()).set(fresh.name, fresh));
      say(`${fresh.name} is ${fresh.state}`);
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  const actions = may("admin") ? own(POSSIBLE, node.state) ?? [] : [];
  return html`<${Dialog} title=${node.name} onClose=${onClose} actions=${html`
    <button class="button" onClick=${onClose}>Close</button>
    ${actions.map((action) => html`<button key=${action} class="button" disabled=${busy} onClick=${() => act(action)}>
      ${ACTIONS[action][0]}</button>`)}
  `}>
    <dl class="pairs">
      <dt>State</dt><dd><${State} of=${node.state} /></dd>
      <dt>Devices</dt><dd>${node.devices_used} of ${node.devices} in use, type ${node.device_type}, relative speed ${format.figure(node.speed)}</dd>
      <dt>CPU</dt><dd>${format.percent(node.cpu_fraction)} of ${format.cores(node.cpu)}</dd>
      <dt>Memory</dt><dd>${format.bytes(node.memory_used_bytes)} of ${format.bytes(node.memory_bytes)}</dd>
      <dt>Temperature</dt><dd>${node.temperature_c == null ? "unknown" : `${format.figure(node.temperature_c)} °C`}</dd>
      <dt>Power</dt><dd>${node.power_w == null ? "unknown" : `${format.figure(node.power_w)} W`}</dd>
      <dt>Isolation</dt><dd>${node.isolation}</dd>
      <dt>Node manager</dt><dd>${["lost", "asleep"].includes(node.state) ? "not running" : "running"}${node.warm ? ", warm start ready" : ""}</dd>
      <dt>Jobs</dt><dd>${node.jobs.length
        ? html`<ul class="plain">${node.jobs.map((job) => html`<li key=${job}><${JobLink} id=${job} /></li>`)}</ul>`
        : "none visible to you"}</dd>
    </dl>
    ${actions.length ? html`<ul class="hints">${actions.map((action) => html`<li key=${action}>
      <b>${ACTIONS[action][0]}.</b> ${ACTIONS[action][1]}</li>`)}</ul>` : null}
    ${node.state === "lost" ? html`<p class="hint"><${Shape} of="lost" /> Its node manager has stopped and will be restarted automatically.</p>` : null}
    <${Trouble} problem=${problem} />
  <//>`;
}
