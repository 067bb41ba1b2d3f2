// Charts of a job's loss and throughput.

import { jobPath, request } from "../api.js";
import { Chart } from "../chart.js";
import * as format from "../format.js";
import { on } from "../live.js";
import { coalesced, html, own, useEffect, useMemo, useState } from "../ui.js";

const POINTS = 600;

export function Curves({ job }) {
  const [history, setHistory] = useState(null);
  const load = useMemo(() => coalesced(async () => {
    try {
      setHistory(await request(jobPath(job.id, "/metrics"), { query: { points: POINTS } }));
    } catch {
      return; // the frame already shows that the connection is lost
    }
  }, 1500), [job.id]);
  useEffect(() => {
    const off = on("resync", load);
    return () => {
      off();
      load.cancel();
    };
  }, [load]);
  useEffect(load, [load, job.step, job.state]);
  const steps = history?.steps ?? [];
  const metrics = useMemo(() => names(steps), [history]);
  if (!history) return html`<p class="loading">Loading metrics …</p>`;
  if (steps.length < 2 || steps.some((step) => step.step == null)) return null;
  return html`<div class="two">
    <${Loss} steps=${steps} metrics=${metrics} />
    <${Throughput} steps=${steps} batch=${history.batch_size} />
  </div>`;
}

// Other losses only: metrics such as accuracy have another scale and are shown in the result.
function names(steps) {
  const found = new Set();
  for (const step of steps) for (const name of Object.keys(step)) if (/loss$/.test(name) && name !== "loss") found.add(name);
  return [...found].slice(0, 3);
}

const value = (plot, amount) => format.figure(amount);

function Loss({ steps, metrics }) {
  const [log, setLog] = useState(false);
  const data = useMemo(() => {
    const positive = (amount) => (log && !(amount > 0) ? null : amount ?? null);
    return [steps.map((step) => step.step), ...["loss", ...metrics].map((name) => steps.map((step) => positive(own(step, name))))];
  }, [steps, metrics, log]);
  const series = [
    { label: "loss", colour: "--c-1", value, fill: !log },
    ...metrics.map((name, place) => ({ label: name, colour: `--c-${place + 2}`, value, spanGaps: true, width: 1.5 })),
  ];
  const last = steps.at(-1), begin = steps[0];
  return html`<section class="panel" aria-labelledby="loss-title">
    <div class="panel-head"><h2 id="loss-title">Loss</h2>
      <label class="check"><input type="checkbox" checked=${log} onChange=${(event) => setLog(event.target.checked)} /> log scale</label></div>
    <${Chart} key=${log ? "log" : "linear"} series=${series} data=${data} x=${{ label: "step", value: (plot, step) => format.number(step) }}
      scales=${log ? { y: { distr: 3 } } : undefined} y=${{ values: (plot, ticks) => ticks.map((tick) => (tick == null ? "" : format.figure(tick))) }}
      words=${`Loss from ${format.figure(begin.loss)} at step ${begin.step} to ${format.figure(last.loss)} at step ${last.step}`} />
  </section>`;
}

function Throughput({ steps, batch }) {
  const { data, unit, recent } = useMemo(() => speeds(steps, batch), [steps, batch]);
  if (data[0].length < 2) return null;
  return html`<section class="panel" aria-labelledby="speed-title">
    <div class="panel-head"><h2 id="speed-title">Throughput</h2><span class="dim">${unit} per second</span></div>
    <${Chart} series=${[{ label: unit, colour: "--c-2", value, fill: true }]} data=${data}
      x=${{ time: true, label: "at", value: (plot, at) => (at == null ? format.NONE : format.time(at)) }}
      y=${{ values: (plot, ticks) => ticks.map((tick) => format.figure(tick)) }}
      scales=${{ y: { range: (plot, low, high) => [0, Math.max(high ?? 1, 1e-9) * 1.1] } }}
      words=${`Throughput is ${format.figure(recent)} ${unit} per second at the end`} />
  </section>`;
}

// Throughput from the steps' times, averaged over at least a second: shorter intervals are noisy on shared cores.
function speeds(steps, batch) {
  const timed = steps.filter((step) => step.time_s != null);
  const stretch = Math.max(1, (timed.at(-1).time_s - timed[0].time_s) / 80);
  const times = [], rates = [];
  let from = timed[0];
  for (const to of timed) {
    const seconds = to.time_s - from.time_s;
    if (seconds < stretch || to.step <= from.step) continue;
    times.push(to.time_s);
    rates.push(((to.step - from.step) * (batch || 1)) / seconds);
    from = to;
  }
  return { data: [times, rates], unit: batch ? "samples" : "steps", recent: rates.at(-1) };
}
