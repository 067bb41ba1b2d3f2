// The queue view: jobs with state, reason, expected start and progress.

import { who } from "../api.js";
import * as format from "../format.js";
import { on } from "../live.js";
import { ended, jobs, loadJobs, markChanged, moreJobs, tenants } from "../model.js";
import { Empty, JobLink, Meter, State, Tenant, Time, Trouble } from "../parts.js";
import { setQuery } from "../router.js";
import { coalesced, html, memo, own, useCell, useEffect, useMemo, useRef, useState, useNow } from "../ui.js";
import { VirtualTable, useNarrow } from "../virtual.js";

const STATES = ["active", "queued", "running", "starting,stopping", "ended", "succeeded", "failed", "cancelled", "all"];
const OPEN = new Set(STATES.slice(0, 4));
const COLUMNS = [
  { name: "State" }, { name: "Job" }, { name: "Tenant" }, { name: "Workers", className: "num" },
  { name: "Progress" }, { name: "Reason and expected start" }, { name: "Elapsed / ended", className: "num" },
];

export function QueueView({ query }) {
  const [wanted, setWanted] = useState({
    state: query.get("state") ?? "active", tenant: query.get("tenant") ?? "", name: query.get("name") ?? "",
  });
  const { items, total, next, loading, problem } = useCell(jobs);
  const teams = useCell(tenants), narrow = useNarrow(), seen = useRef([]);
  const server = {
    state: wanted.state === "all" ? "" : wanted.state, tenant: wanted.tenant,
    order: OPEN.has(wanted.state) ? "queue" : "newest", // running jobs, then the longest waiting
  };
  const load = useMemo(() => coalesced(() => loadJobs(), 2000), []);

  useEffect(() => {
    document.title = "Queue · Fairlead";
    const again = coalesced(() => markChanged(seen.current), 3000); // reasons and expected starts of the visible jobs
    const offs = [on("resync", load), on("beat", again)];
    return () => {
      offs.forEach((off) => off());
      load.cancel();
      again.cancel();
    };
  }, []);
  useEffect(() => {
    loadJobs(server);
  }, [server.state, server.tenant]);

  const choose = (part) => {
    const all = { ...wanted, ...part };
    setWanted(all);
    setQuery("queue", { ...all, state: all.state === "active" ? "" : all.state });
  };
  const shown = useMemo(() => sorted([...items.values()].filter(named(wanted.name))), [items, wanted.name]);
  const onSeen = (rows, atEnd) => {
    seen.current = rows.filter((job) => job.state === "queued").map((job) => job.id);
    if (atEnd) moreJobs();
  };
  return html`
    <div class="head"><h1 tabindex="-1">Queue</h1><${Count} shown=${shown.length} total=${total} loading=${loading} /></div>
    <form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
      <label>State <select value=${wanted.state} onChange=${(event) => choose({ state: event.target.value })}>
        ${STATES.map((state) => html`<option key=${state} value=${state}>${state.replace(",", " or ")}</option>`)}
      </select></label>
      ${who.get()?.tenant ? null : html`<label>Tenant <select value=${wanted.tenant} onChange=${(event) => choose({ tenant: event.target.value })}>
        <option value="">all</option>
        ${(teams ?? []).map((team) => html`<option key=${team.name} value=${team.name}>${team.name}</option>`)}
      </select></label>`}
      <label class="grow">Name <input type="search" placeholder="Part of a name or id" value=${wanted.name}
        onInput=${(event) => choose({ name: event.target.value })} /></label>
    </form>
    <${Trouble} problem=${problem} again=${load} />
    ${total === null && !problem ? html`<p class="loading">Loading jobs …</p>` : null}
    ${total !== null && shown.length === 0 ? html`<${Nothing} wanted=${wanted} all=${items.size} />` : null}
    ${shown.length ? html`<${VirtualTable} label="Jobs" columns=${COLUMNS} items=${shown} keyOf=${(job) => job.id}
      height=${narrow ? 104 : 50} onSeen=${onSeen} row=${(job) => html`<${Row} job=${job} />`} rowClass=${(job) => `job-row r-${job.state}`} />` : null}
    ${next && wanted.name ? html`<p class="hint">The search covers only the jobs loaded so far. <button class="button small" onClick=${moreJobs}>Load more</button></p>` : null}
  `;
}

function Count({ shown, total, loading }) {
  if (total === null) return null;
  const of = shown === total ? format.plural(total, "job") : `${format.number(shown)} of ${format.plural(total, "job")}`;
  return html`<p class="count" aria-busy=${loading}>${of}</p>`;
}

function Nothing({ wanted, all }) {
  if (wanted.name && all) return html`<${Empty} title="No matching job">None of the ${format.plural(all, "loaded job")} matches.<//>`;
  return html`<${Empty} title="No jobs">Submit a job with <code>fairlead run</code> or <code>fairlead submit</code>.<//>`;
}

const RANK = { stopping: 0, running: 0, starting: 0, queued: 1 };
const named = (part) => {
  const text = part.trim().toLowerCase();
  return (job) => !text || job.name.toLowerCase().includes(text) || job.id.includes(text);
};

// Running jobs first, then waiting jobs by expected start, then ended jobs.
function sorted(all) {
  return all.sort((a, b) => {
    const rank = (own(RANK, a.state) ?? 2) - (own(RANK, b.state) ?? 2);
    if (rank) return rank;
    if (a.state === "queued") {
      const when = (a.expected_start_s ?? Infinity) - (b.expected_start_s ?? Infinity);
      if (when) return when;
      if (a.priority !== b.priority) return b.priority - a.priority;
      return a.submitted_s - b.submitted_s;
    }
    return ended(a) ? b.finished_s - a.finished_s : b.submitted_s - a.submitted_s;
  });
}

const Row = memo(({ job }) => html`
  <td class="c-state"><${State} of=${job.state} /></td>
  <th scope="row" class="c-name"><${JobLink} id=${job.id}>${job.name}<//> <small class="mono">${job.id.slice(job.name.length)}</small></th>
  <td class="c-tenant"><${Tenant} name=${job.tenant} /></td>
  <td class="c-workers num">${workers(job)}</td>
  <td class="c-progress"><${Progress} job=${job} /></td>
  <td class="c-why"><span class="why" title=${job.reason?.text ?? ""}><${Expected} job=${job} />${job.reason?.text ?? ""}</span></td>
  <td class="c-for num"><${Elapsed} job=${job} /></td>
`);

function workers(job) {
  const bounds = job.min_workers === job.max_workers ? job.max_workers : `${job.min_workers}–${job.max_workers}`;
  return html`<b>${job.workers || format.NONE}</b><span class="dim"> / ${bounds}</span>`;
}

export function Progress({ job }) {
  if (!job.total_steps) return html`<span class="dim">${job.state === "running" ? "no steps" : format.NONE}</span>`;
  const part = job.step / job.total_steps;
  return html`<span class="progress"><${Meter} part=${part} tone=${job.state === "failed" ? "bad" : ""} />
    <span class="num">${format.percent(part)}</span></span>`;
}

function Expected({ job }) {
  const now = useNow();
  if (job.state !== "queued" || format.instant(job.expected_start_s) === null) return null;
  const left = job.expected_start_s - now;
  return html`<span class="expected" title=${format.moment(job.expected_start_s)}>${left > 1 ? `in ${format.duration(left)}` : "now"}</span>`;
}

function Elapsed({ job }) {
  const now = useNow();
  if (ended(job)) return html`<${Time} at=${job.finished_s} />`;
  const since = job.state === "queued" ? job.submitted_s : job.started_s ?? job.submitted_s;
  return html`<span title=${`since ${format.moment(since)}`}>${format.duration(now - since)}</span>`;
}
