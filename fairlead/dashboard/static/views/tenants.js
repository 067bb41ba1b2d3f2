// The tenants view: devices in use against entitlement over time, fairness, and usage.

import { request } from "../api.js";
import { Chart } from "../chart.js";
import * as format from "../format.js";
import { on } from "../live.js";
import { hue, loadTenants, tenants } from "../model.js";
import { Empty, Figure, Meter, Tenant, Trouble } from "../parts.js";
import { coalesced, html, useCell, useEffect, useMemo, useState } from "../ui.js";

const WINDOWS = [[900, "15 minutes"], [3600, "1 hour"], [6 * 3600, "6 hours"], [86400, "1 day"], [7 * 86400, "1 week"]];
const EVERY_MS = 5000;

export function TenantsView() {
  const teams = useCell(tenants);
  const [shares, setShares] = useState(null);
  const [window_s, setWindow] = useState(900);
  const [problem, setProblem] = useState(null);
  const load = useMemo(() => coalesced(async () => {
    try {
      const [found] = await Promise.all([request("shares", { query: { window_s, points: 150 } }), loadTenants()]);
      setShares(found);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  }, EVERY_MS), [window_s]);
  useEffect(() => {
    document.title = "Tenants · Fairlead";
    load();
    const timer = setInterval(() => document.hidden || load(), EVERY_MS);
    const offs = [on("resync", load), on("event", (event) => event.tenant && load())];
    return () => {
      clearInterval(timer);
      offs.forEach((off) => off());
      load.cancel();
    };
  }, [load]);
  const held = (teams ?? []).reduce((sum, team) => sum + team.devices, 0);
  return html`
    <div class="head"><h1 tabindex="-1">Tenants</h1>
      <label class="window">Last <select value=${window_s} onChange=${(event) => setWindow(Number(event.target.value))}>
        ${WINDOWS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select></label>
    </div>
    <${Trouble} problem=${problem} again=${load} />
    ${teams === null ? html`<p class="loading">Loading tenants …</p>` : html`
      <dl class="figures">
        <${Figure} label="Fairness (Jain's index)" value=${shares?.fairness == null ? format.NONE : shares.fairness.toFixed(3)}
          note="1: shares match weights" />
        <${Balance} balance=${shares?.balance} />
        <${Figure} label="Devices in use" value=${`${held} of ${shares?.devices ?? format.NONE}`} />
        <${Figure} label="Tenants" value=${teams.length} note=${`${teams.filter((team) => team.running + team.queued).length} with jobs`} />
      </dl>
      ${teams.length === 0 ? html`<${Empty} title="No tenants yet">Create one: <code>fairlead tenant create NAME</code><//>` : null}
      ${shares && shares.tenants.length ? html`<section class="panel" aria-labelledby="shares-title">
        <h2 id="shares-title">Devices in use and entitlement</h2>
        <p class="dim">Devices in use (solid) and entitled devices while the tenant had jobs (dashed).</p>
        <${Shares} shares=${shares} />
      </section>` : null}
      ${teams.length ? html`<${Ledger} teams=${teams} />` : null}
    `}
  `;
}

// Recent fairness as the scheduler tracks it, and whether it is compensating tenants.
function Balance({ balance }) {
  if (!balance) return null;
  return html`<${Figure} label="Recent fairness" value=${balance.index.toFixed(3)} tone=${balance.corrects ? "bad" : ""}
    note=${balance.corrects ? balance.text : `compensates below ${balance.threshold}`} />`;
}

function Shares({ shares }) {
  const shown = shares.tenants.slice(0, 10);
  const series = shown.flatMap((line) => {
    const colour = `--${hue(line.tenant)}`;
    const value = (plot, amount) => (amount == null ? format.NONE : format.figure(amount));
    return [
      { label: line.tenant, colour, stepped: true, fill: true, width: 2, value },
      { label: `${line.tenant} entitled`, colour, stepped: true, dash: [5, 4], width: 1.25, value },
    ];
  });
  const data = useMemo(() => {
    const begin = firstUse(shown), cut = (values) => values.slice(begin);
    const times = shown[0].held.map((_, place) => shares.since_s + place * shares.step_s);
    return [times, ...shown.flatMap((line) => [line.held, line.entitlement.map((amount) => amount || null)])].map(cut);
  }, [shares]);
  const words = shown
    .map((line) => `${line.tenant} used ${format.figure(mean(line.held))} devices on average, entitled to ${format.figure(line.entitlement.at(-1))} now`)
    .join("; ");
  const clock = (plot, value) => (value == null ? format.NONE : format.time(value));
  return html`<${Chart} series=${series} data=${data} words=${words} height=${280} x=${{ time: true, label: "at", value: clock }}
    scales=${{ y: { range: (plot, low, high) => [0, Math.max(1, high ?? 1) * 1.05] } }} />`;
}

// The chart of a new platform starts at its first use of a device.
function firstUse(lines) {
  const used = lines[0].held.findIndex((_, place) => lines.some((line) => line.held[place] || line.entitlement[place]));
  return Math.max(0, Math.min(used - 2, lines[0].held.length - 20));
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

// Tenants in tree order, each with its depth.
function inTree(teams) {
  const names = new Set(teams.map((team) => team.name));
  const below = new Map();
  for (const team of teams) {
    const parent = names.has(team.parent) ? team.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), team]);
  }
  const walk = (parent, depth) => (below.get(parent) ?? []).flatMap((team) => [{ team, depth }, ...walk(team.name, depth + 1)]);
  return walk(null, 0);
}

const counts = (byType) => Object.entries(byType ?? {}).map(([kind, devices]) => `${devices} ${kind}`).join(", ");

function lent({ borrowed }) {
  if (Math.abs(borrowed ?? 0) < 0.005) return "";
  const amount = format.figure(Math.round(Math.abs(borrowed) * 100) / 100);
  return borrowed > 0 ? `borrows ${amount} devices` : `lends ${amount} devices`;
}

function Ledger({ teams }) {
  const typed = teams.some((team) => counts(team.guarantee) || counts(team.most));
  return html`<section class="panel" aria-labelledby="ledger-title">
    <h2 id="ledger-title">Shares and limits</h2>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Shares and limits by tenant"><table class="grid">
      <thead><tr>
        <th scope="col">Tenant</th><th scope="col" class="num">Weight</th><th scope="col" class="num">Quota</th>
        ${typed ? html`<th scope="col">Guarantee</th><th scope="col">Maximum</th>` : null}
        <th scope="col">Devices in use of entitled</th><th scope="col" class="num">Running</th><th scope="col" class="num">Queued</th>
        <th scope="col" class="num">Device time used</th><th scope="col">Budget</th><th scope="col">Default SLA</th><th scope="col">Network</th>
        <th scope="col">Folders</th>
      </tr></thead>
      <tbody>${inTree(teams).map(({ team, depth }) => html`<tr key=${team.name}>
        <th scope="row" class=${depth ? `below-${Math.min(depth, 4)}` : ""}><${Tenant} name=${team.name} /></th>
        <td class="num">${format.figure(team.weight)}</td>
        <td class="num">${team.quota ?? format.NONE}</td>
        ${typed ? html`<td>${counts(team.guarantee) || format.NONE}</td><td>${counts(team.most) || format.NONE}</td>` : null}
        <td><span class="progress" title=${lent(team)}>
          <${Meter} part=${team.entitlement ? holds(team) / team.entitlement : 0} tone=${hue(team.name)} />
          <span class="num">${holds(team)} of ${format.figure(Math.round(team.entitlement * 100) / 100)}</span></span></td>
        <td class="num">${format.number(team.running)}</td>
        <td class="num">${format.number(team.queued)}</td>
        <td class="num">${format.duration(team.device_s)}</td>
        <td>${budget(team)}</td>
        <td>${promise(team.sla)}</td>
        <td>${team.policy.network ?? format.NONE}</td>
        <td class="num">${team.policy.folders?.length ?? 0}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

const holds = (team) => team.devices + (team.devices_below ?? 0);

function budget({ spending }) {
  if (!spending) return html`<span class="dim">none</span>`;
  const { used_hours: used, device_hours: limit, per, until_s: until, used_up: over } = spending;
  const tone = over ? "bad" : used / limit > 0.8 ? "hot" : "";
  return html`<span class="progress" title=${`resets ${format.moment(until)}`}><${Meter} part=${used / limit} tone=${tone} />
    <span class="num">${format.figure(Math.round(used * 100) / 100)} of ${format.figure(limit)} device hours per ${per}${over ? ", used up" : ""}</span></span>`;
}

function promise(sla) {
  return sla?.class ?? (sla?.deadline ? `within ${sla.deadline}` : html`<span class="dim">none</span>`);
}
