// A job's generations as a Gantt chart: workers, nodes, time, reason and outcome.

import * as format from "../format.js";
import { ended } from "../model.js";
import { Time } from "../parts.js";
import { html, useNow, useState } from "../ui.js";

const SHOWN = 12;

export function Gantt({ job }) {
  const now = useNow();
  const [all, setAll] = useState(false);
  const generations = job.generations;
  if (!generations.length) return null;
  const from = generations[0].created_s, to = job.finished_s ?? (ended(job) ? generations.at(-1).ended_s : now) ?? now;
  const span = Math.max(0.001, to - from);
  const shown = all ? generations : generations.slice(-SHOWN);
  return html`<section class="panel" aria-labelledby="gantt-title">
    <div class="panel-head"><h2 id="gantt-title">Generations</h2>
      ${generations.length > SHOWN ? html`<button class="button small" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? `Only the last ${SHOWN}` : `All ${generations.length}`}</button>` : null}</div>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Generations over time"><table class="gantt">
      <thead><tr><th scope="col" class="num">Generation</th><th scope="col">Workers</th>
        <th scope="col" class="axis"><span><${Time} at=${from} /></span><span>${format.duration(span)}</span><span><${Time} at=${to} /></span></th>
        <th scope="col">Reason</th></tr></thead>
      <tbody>${shown.map((each) => html`<tr key=${each.number}>
        <th scope="row" class="num">${each.number}</th>
        <td class="who">${working(each)}${format.plural(each.members.length, "worker")} <small class="dim">${places(each.members)}</small></td>
        <td class="lane"><${Bar} each=${each} from=${from} span=${span} until=${to} /></td>
        <td class="why-cell">${each.reason.text}${each.outcome ? html` <span class=${`outcome o-${each.outcome}`}>${each.outcome}</span>` : null}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

function working(each) {
  const used = each.plan?.workers_used ?? each.members.length;
  return used < each.members.length ? `${used} of ` : "";
}

function places(members) {
  const count = new Map();
  for (const member of members) count.set(member.node, (count.get(member.node) ?? 0) + 1);
  const shown = [...count].map(([node, number]) => (number > 1 ? `${node} × ${number}` : node));
  return shown.length > 4 ? `${shown.slice(0, 3).join(", ")} and ${shown.length - 3} more` : shown.join(", ");
}

// Hatched while the gang started, solid while it ran.
function Bar({ each, from, span, until }) {
  const end = each.ended_s ?? until, ran = each.running_s ?? end;
  const at = (time) => `${(100 * Math.max(0, time - from)) / span}%`;
  const wide = (seconds) => `${Math.max(0, (100 * seconds) / span)}%`;
  const words = each.running_s
    ? `started in ${format.duration(ran - each.created_s)}, ran for ${format.duration(end - ran)}`
    : `starting for ${format.duration(end - each.created_s)}`;
  return html`<div class="bars" role="img" aria-label=${words} title=${words}>
    <i class="bar joining" style=${{ left: at(each.created_s), width: wide(ran - each.created_s) }}></i>
    ${each.running_s ? html`<i class=${`bar ran ${each.ended_s ? "" : "now"} o-${each.outcome ?? "open"}`} style=${{ left: at(ran), width: wide(end - ran) }}></i>` : null}
  </div>`;
}
