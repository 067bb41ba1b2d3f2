// The pipelines view: the newest pipelines, and one pipeline as a live graph.

import { request, who } from "../api.js";
import * as format from "../format.js";
import { HEIGHT, layout } from "../layers.js";
import { on } from "../live.js";
import { Confirm, Empty, JobLink, Shape, State, Tenant, Time, Trouble, complain, say } from "../parts.js";
import { href } from "../router.js";
import { coalesced, html, useCell, useEffect, useMemo, useNow, useState } from "../ui.js";

const EVERY_MS = 700, IDLE_MS = 5000;
const SMALLEST = 0.82;  // wide graphs are scaled down to this factor, then they scroll
const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const ORDER = ["running", "starting", "stopping", "queued", "waiting", "succeeded", "cached", "failed", "skipped", "cancelled"];

// Reloads after every event, and every few seconds.
function useFresh(path, query) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = useMemo(() => coalesced(async () => {
    try {
      setFound(await request(path, { query }));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  }, EVERY_MS), [path]);
  useEffect(() => {
    load();
    const timer = setInterval(() => document.hidden || load(), IDLE_MS);
    const offs = [on("resync", load), on("event", load)];
    return () => {
      clearInterval(timer);
      offs.forEach((off) => off());
      load.cancel();
    };
  }, [load]);
  return [found, problem, load];
}

export function PipelinesView() {
  const [page, problem, load] = useFresh("pipelines", { limit: 100 });
  const now = useNow();
  useEffect(() => {
    document.title = "Pipelines · Fairlead";
  }, []);
  return html`
    <div class="head"><h1 tabindex="-1">Pipelines</h1></div>
    <${Trouble} problem=${problem} again=${load} />
    ${page === null ? html`<p class="loading">Loading pipelines …</p>` : null}
    ${page?.items.length === 0 ? html`<${Empty} title="No pipelines yet">Run one: <code>fairlead pipeline run file.py:pipeline</code><//>` : null}
    ${page?.items.length ? html`<section class="panel"><div class="scroll-x" tabindex="0" role="region" aria-label="Pipelines">
      <table class="grid"><thead><tr><th scope="col">Name</th><th scope="col">Tenant</th><th scope="col">State</th>
        <th scope="col">Stages</th><th scope="col">Submitted</th><th scope="col" class="num">Elapsed</th></tr></thead>
      <tbody>${page.items.map((each) => html`<tr key=${each.id}>
        <th scope="row"><a href=${href("pipeline", each.id)}>${each.name}</a> <small class="dim">${each.id}</small></th>
        <td><${Tenant} name=${each.tenant} /></td><td><${State} of=${each.state} /></td>
        <td>${counted(each.counts)}</td><td><${Time} at=${each.submitted_s} /></td>
        <td class="num">${format.duration((each.finished_s ?? now) - each.submitted_s)}</td>
      </tr>`)}</tbody></table></div></section>` : null}
  `;
}

const counted = (counts) => ORDER.filter((state) => counts[state]).map((state) => `${counts[state]} ${state}`).join(", ");

export function PipelineView({ id }) {
  const [pipeline, problem, load] = useFresh(`pipelines/${encodeURIComponent(id)}`);
  const [asking, setAsking] = useState(false);
  const [chosen, choose] = useState(null);
  const me = useCell(who);
  const now = useNow();
  useEffect(() => {
    document.title = `${pipeline?.name ?? "Pipeline"} · Fairlead`;
  }, [pipeline?.name]);
  if (pipeline === null) {
    return html`<div key="head" class="head job-head"><div><h1 tabindex="-1">Pipeline</h1></div></div><${Trouble} problem=${problem} again=${load} />
      ${problem ? null : html`<p class="loading">Loading pipeline …</p>`}`;
  }
  const cancel = async () => {
    await request(`pipelines/${encodeURIComponent(pipeline.id)}/cancel`, { method: "POST" });
    say(`${pipeline.name} is being cancelled`);
    load();
  };
  const stage = pipeline.stages.find((each) => each.name === chosen);
  return html`
    <p class="crumbs"><a href=${href("pipelines")}>Pipelines</a> <span aria-hidden="true">/</span></p>
    <div key="head" class="head job-head"><div><h1 tabindex="-1">${pipeline.name}</h1>
      <p class="sub"><${State} of=${pipeline.state} /><${Tenant} name=${pipeline.tenant} /><span class="mono dim">${pipeline.id}</span>
        <span class="num">${format.duration((pipeline.finished_s ?? now) - pipeline.submitted_s)}</span></p></div>
      ${ENDED.has(pipeline.state) || me?.role === "viewer" ? null : html`<div class="actions"><button type="button" class="button danger-quiet" onClick=${() => setAsking(true)}>Cancel</button></div>`}
    </div>
    <${Trouble} problem=${problem} again=${load} />
    ${pipeline.message ? html`<p class=${pipeline.state === "failed" ? "wrong" : "dim"}>${pipeline.message}</p>` : null}
    <section class="panel" aria-labelledby="graph-title"><h2 id="graph-title">Stages</h2>
      <p class="dim">${counted(pipeline.counts)}</p>
      <${Graph} stages=${pipeline.stages} chosen=${chosen} choose=${choose} now=${now} />
    </section>
    ${stage ? html`<${Details} stage=${stage} stages=${pipeline.stages} choose=${choose} now=${now} />` : null}
    <${Table} stages=${pipeline.stages} now=${now} />
    ${asking ? html`<${Confirm} title=${`Cancel ${pipeline.name}?`} verb="Cancel the pipeline" onClose=${() => setAsking(false)}
      doIt=${() => cancel().catch(complain)}>Running stages will be stopped, and no other stages will start.<//>` : null}
  `;
}

const took = (stage, now) => (stage.started_s == null || stage.state === "cached" ? "" : format.duration((stage.finished_s ?? now) - stage.started_s));

// Boxes are buttons, also for the keyboard; the table below holds the same information.
function Graph({ stages, chosen, choose, now }) {
  const { boxes, edges, width, height } = useMemo(() => layout(stages), [stages]);
  const style = { maxWidth: `${width}px`, minWidth: `${Math.round(SMALLEST * width)}px` };
  return html`<div class="scroll-x graph-scroll" tabindex="0" role="region" aria-label="Graph of stages">
    <svg class="graph" style=${style} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${format.plural(stages.length, "stage")}>
      ${edges.map(({ key, points, stage }) => html`<path key=${key} class=${`edge e-${stage.state}`} aria-hidden="true" d=${curve(points)} />`)}
      ${boxes.map(({ stage, x, y, wide }) => html`<${Box} key=${stage.name} stage=${stage} x=${x} y=${y} wide=${wide} now=${now}
        on=${chosen === stage.name} choose=${choose} />`)}
    </svg></div>`;
}

// A path through the points, curved between layers and straight across them.
function curve([[x, y], ...rest]) {
  return rest.reduce(({ path, x: from, y: high }, [to, next]) => {
    const bend = (to - from) / 2;
    return { path: `${path}C${from + bend} ${high} ${to - bend} ${next} ${to} ${next}`, x: to, y: next };
  }, { path: `M${x} ${y}`, x, y }).path;
}

function Box({ stage, x, y, wide, on: pressed, choose, now }) {
  const sub = [stage.state, took(stage, now)].filter(Boolean).join(" · ");
  const toggle = () => choose(pressed ? null : stage.name);
  const key = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle();
  };
  return html`<g class=${`stage s-${stage.state} ${pressed ? "chosen" : ""}`} transform=${`translate(${x} ${y})`} role="button" tabindex="0"
      aria-pressed=${pressed} aria-label=${`${stage.name} ${sub}`} data-stage=${stage.name} data-state=${stage.state} onClick=${toggle} onKeyDown=${key}>
    <rect width=${wide} height=${HEIGHT} rx="8" />
    <svg x="12" y="9" width="15" height="15" aria-hidden="true"><${Shape} of=${stage.state} /></svg>
    <text class="stage-name" x="34" y="21">${`${stage.name} `}</text>
    <text class="stage-sub" x="12" y="39">${sub}</text>
  </g>`;
}

function Details({ stage, stages, choose, now }) {
  const after = stages.filter((each) => each.upstream.includes(stage.name)).map((each) => each.name);
  return html`<section class="panel stage-details" aria-labelledby="stage-title">
    <div class="panel-head"><h2 id="stage-title">${stage.name}</h2>
      <button type="button" class="button small" onClick=${() => choose(null)}>Close</button></div>
    <p class="sub"><${State} of=${stage.state} /><span>${stage.kind}</span>${took(stage, now) ? html`<span class="num">${took(stage, now)}</span>` : null}
      ${stage.attempts > 1 ? html`<span>${stage.attempts} attempts</span>` : null}
      ${stage.job ? html`<${JobLink} id=${stage.job} />` : null}</p>
    ${stage.message ? html`<p class=${stage.state === "failed" ? "wrong" : ""}>${stage.message}</p>` : null}
    ${stage.gave ? html`<p>Result <code>${stage.gave}</code>${stage.gave_bytes ? html`, ${format.bytes(stage.gave_bytes)} in memory` : null}</p>` : null}
    <${Neighbours} title="Depends on" names=${stage.upstream} choose=${choose} />
    <${Neighbours} title="Needed by" names=${after} choose=${choose} />
  </section>`;
}

function Neighbours({ title, names, choose }) {
  if (!names.length) return null;
  return html`<p class="neighbours"><span class="dim">${title}</span>
    ${names.map((name) => html`<button key=${name} type="button" class="button small" onClick=${() => choose(name)}>${name}</button>`)}</p>`;
}

function Table({ stages, now }) {
  return html`<section class="panel" aria-labelledby="stages-title"><h2 id="stages-title">Stages in a table</h2>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Stages"><table class="grid in-words"><thead><tr>
      <th scope="col">Stage</th><th scope="col">State</th><th scope="col" class="num">Time</th><th scope="col">Depends on</th><th scope="col">Result or error</th>
    </tr></thead><tbody>${stages.map((stage) => html`<tr key=${stage.name}>
      <th scope="row">${stage.job ? html`<${JobLink} id=${stage.job}>${stage.name}<//>` : stage.name}</th><td><${State} of=${stage.state} /></td>
      <td class="num">${took(stage, now) || format.NONE}</td><td class="words">${stage.upstream.join(", ") || format.NONE}</td>
      <td class="words">${stage.message ?? stage.gave ?? format.NONE}</td></tr>`)}</tbody></table></div></section>`;
}
