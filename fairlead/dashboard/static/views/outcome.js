// A job's result, plan, placement and spec.

import { address, jobPath, request } from "../api.js";
import * as format from "../format.js";
import { Trouble, say } from "../parts.js";
import { html, own, useEffect, useState } from "../ui.js";

const FIGURES = {
  TT: ["Training time (TT)", (value) => format.duration(value)],
  RU: ["Utilisation (RU)", (value) => format.percent(value, 1)],
  TP: ["Throughput (TP)", (value) => `${format.figure(value)} samples/s`],
  FI: ["Fairness index (FI)", (value) => value.toFixed(3)],
  FRT: ["Mean recovery time (FRT)", (value) => format.duration(value)],
  SSR: ["SLA met (SSR)", (value) => (value >= 1 ? "yes" : "no")],
  device_s: ["Device time", (value) => format.duration(value)],
};

export function Result({ job }) {
  const [result, setResult] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = () => request(jobPath(job.id, "/result")).then(setResult, setProblem);
  useEffect(() => {
    load();
  }, [job.id, job.state]);
  if (problem) return html`<${Trouble} problem=${problem} again=${load} />`;
  if (!result) return html`<p class="loading">Loading result …</p>`;
  const figures = Object.entries(FIGURES).filter(([name]) => result.figures[name] != null);
  return html`<section class="panel" aria-labelledby="result-title">
    <h2 id="result-title">Result</h2>
    <div class="three">
      <${Pairs} title="Metrics" rows=${Object.entries(result.metrics).map(([name, value]) => [name, format.figure(value)])} empty="none reported" />
      <${Pairs} title="Figures" rows=${figures.map(([name]) => [FIGURES[name][0], FIGURES[name][1](result.figures[name])])} empty="the job did not run" />
      <div><h3>Files</h3>${result.artifacts.length ? html`<ul class="files">${result.artifacts.map(
        (name) => html`<li key=${name}><a href=${address(jobPath(job.id, `/artifacts/${encodeURIComponent(name)}`))} download=${name}>
          <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M8 2.5v7m0 0L5 6.7m3 2.8 3-2.8M3 13h10" /></svg>${name}</a></li>`,
      )}</ul>` : html`<p class="dim">none</p>`}</div>
    </div>
  </section>`;
}

function Pairs({ title, rows, empty }) {
  return html`<div><h3>${title}</h3>${rows.length
    ? html`<dl class="pairs num">${rows.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`
    : html`<p class="dim">${empty}</p>`}</div>`;
}

const CHOSEN = { planner: "chosen by the planner", asked: "requested", repeated: "as in the original job", default: "the default" };

const perStep = (seconds) => (seconds == null ? format.NONE : seconds < 1 ? `${format.figure(seconds * 1000)} ms` : `${format.figure(seconds)} s`);

// The parallel plan with predicted and measured time per step, and the other candidates.
function Spread({ plan }) {
  const rows = plan.candidates ?? [];
  return html`<div class="spread">
    <h3>Parallel plan</h3>
    <p><b class="mono">${plan.id}</b> on ${format.plural(plan.workers_used, "worker")}, ${own(CHOSEN, plan.chosen) ?? plan.chosen}${
      plan.step_s == null ? null : html`: predicted <b class="num">${perStep(plan.step_s)}</b> per step`}${
      plan.measured_step_s == null ? null : html`, measured <b class="num">${perStep(plan.measured_step_s)}</b>`}</p>
    <p class="dim">${plan.reason}</p>
    ${rows.length < 2 ? null : html`<div class="scroll-x" tabindex="0" role="group" aria-label="Candidates"><table class="grid compact"><caption class="sr">Candidates, the chosen one first</caption><thead><tr>
        <th scope="col">Candidate</th><th scope="col" class="num">Workers</th><th scope="col" class="num">Predicted step</th>
        <th scope="col" class="num">Measured step</th><th scope="col">Bottleneck</th><th scope="col">Reason</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.id}><td class="mono">${row.id}</td><td class="num">${row.workers_used}</td>
        <td class="num">${perStep(row.step_s)}</td><td class="num">${perStep(row.measured_step_s)}</td>
        <td>${row.bottleneck}</td><td class="dim">${row.id === plan.id ? "chosen" : row.reason}</td></tr>`)}</tbody></table></div>`}
  </div>`;
}

export function Plan({ job }) {
  const members = job.generations.at(-1)?.members ?? [];
  const plan = job.generations.findLast((generation) => generation.plan)?.plan;
  const text = JSON.stringify(job.spec, null, 2);
  const copy = () => navigator.clipboard.writeText(text).then(() => say("Spec copied to the clipboard"), () => say("The browser refused access to the clipboard", { tone: "bad" }));
  return html`<section class="panel" aria-labelledby="plan-title">
    <div class="panel-head"><h2 id="plan-title">Plan</h2><button class="button small" onClick=${copy}>Copy spec</button></div>
    ${plan ? html`<${Spread} plan=${plan} />` : null}
    <div class="two even">
      <div><h3>Placement</h3>${members.length ? html`<table class="grid compact"><thead><tr>
          <th scope="col" class="num">Rank</th><th scope="col">Worker</th><th scope="col">Node</th></tr></thead>
        <tbody>${members.slice(0, 64).map((member) => html`<tr key=${member.worker}><td class="num">${member.rank}</td><td>${member.worker}</td><td>${member.node}</td></tr>`)}</tbody></table>
        ${members.length > 64 ? html`<p class="dim">and ${members.length - 64} more</p>` : null}`
        : html`<p class="dim">not placed yet</p>`}</div>
      <div><h3>Spec</h3><pre class="code" tabindex="0" aria-label="Spec of the job">${text}</pre></div>
    </div>
  </section>`;
}
