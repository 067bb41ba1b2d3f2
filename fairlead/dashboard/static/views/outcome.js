// What a job left behind, and what it was asked to do and where it runs.

import { address, jobPath, request } from "../api.js";
import * as format from "../format.js";
import { Trouble, say } from "../parts.js";
import { html, useEffect, useState } from "../ui.js";

const FIGURES = {
  TT: ["Training time (TT)", (value) => format.duration(value)],
  RU: ["Utilisation (RU)", (value) => format.percent(value, 1)],
  TP: ["Throughput (TP)", (value) => `${format.figure(value)} samples/s`],
  FI: ["Fairness (FI)", (value) => value.toFixed(3)],
  FRT: ["Recovery time (FRT)", (value) => format.duration(value)],
  SSR: ["Promise kept (SSR)", (value) => (value >= 1 ? "yes" : "no")],
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
  if (!result) return html`<p class="loading">Looking at its result …</p>`;
  const figures = Object.entries(FIGURES).filter(([name]) => result.figures[name] != null);
  return html`<section class="panel" aria-labelledby="result-title">
    <h2 id="result-title">Result</h2>
    <div class="three">
      <${Pairs} title="Metrics" rows=${Object.entries(result.metrics).map(([name, value]) => [name, format.figure(value)])} empty="It reported none." />
      <${Pairs} title="Figures" rows=${figures.map(([name]) => [FIGURES[name][0], FIGURES[name][1](result.figures[name])])} empty="It did not run." />
      <div><h3>Files</h3>${result.artifacts.length ? html`<ul class="files">${result.artifacts.map(
        (name) => html`<li key=${name}><a href=${address(jobPath(job.id, `/artifacts/${encodeURIComponent(name)}`))} download=${name}>
          <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M8 2.5v7m0 0L5 6.7m3 2.8 3-2.8M3 13h10" /></svg>${name}</a></li>`,
      )}</ul>` : html`<p class="dim">It left none.</p>`}</div>
    </div>
  </section>`;
}

function Pairs({ title, rows, empty }) {
  return html`<div><h3>${title}</h3>${rows.length
    ? html`<dl class="pairs num">${rows.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`
    : html`<p class="dim">${empty}</p>`}</div>`;
}

export function Plan({ job }) {
  const members = job.generations.at(-1)?.members ?? [];
  const text = JSON.stringify(job.spec, null, 2);
  const copy = () => navigator.clipboard.writeText(text).then(() => say("The spec is on the clipboard"), () => say("The browser does not allow that", { tone: "bad" }));
  return html`<section class="panel" aria-labelledby="plan-title">
    <div class="panel-head"><h2 id="plan-title">Plan</h2><button class="button small" onClick=${copy}>Copy the spec</button></div>
    <div class="two even">
      <div><h3>Placement</h3>${members.length ? html`<table class="grid compact"><thead><tr>
          <th scope="col" class="num">Rank</th><th scope="col">Worker</th><th scope="col">Node</th></tr></thead>
        <tbody>${members.slice(0, 64).map((member) => html`<tr key=${member.worker}><td class="num">${member.rank}</td><td>${member.worker}</td><td>${member.node}</td></tr>`)}</tbody></table>
        ${members.length > 64 ? html`<p class="dim">and ${members.length - 64} more</p>` : null}`
        : html`<p class="dim">It has not been placed yet.</p>`}</div>
      <div><h3>Spec</h3><pre class="code" tabindex="0" aria-label="Spec of the job">${text}</pre></div>
    </div>
  </section>`;
}
