// The job view: progress, reason, curves, generations, logs, result; cancel and resubmit.

import { jobPath, may, request } from "../api.js";
import * as format from "../format.js";
import { on } from "../live.js";
import { ended } from "../model.js";
import { Confirm, Figure, Meter, State, Tenant, Time, Trouble, say } from "../parts.js";
import { go, href } from "../router.js";
import { coalesced, html, own, useEffect, useMemo, useNow, useState } from "../ui.js";
import { Curves } from "./curves.js";
import { Gantt } from "./gantt.js";
import { Logs } from "./logs.js";
import { Plan, Result } from "./outcome.js";

// Loads the job after events and updates it from heartbeats.
function useJob(id) {
  const [job, setJob] = useState(null);
  const [why, setWhy] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = useMemo(() => coalesced(async () => {
    try {
      const found = await request(jobPath(id));
      setJob(found);
      setProblem(null);
      setWhy(found.state === "queued" || found.state === "running" ? await request(jobPath(found.id, "/why")) : null);
    } catch (error) {
      setProblem(error);
    }
  }, 600), [id]);
  useEffect(() => {
    load();
    let decided = null, asked = 0;
    const beat = (news) => {
      const fields = own(news.jobs, id);
      if (fields) {
        setJob((old) => old && { ...old, ...fields });
        if ("generation" in fields || "state" in fields || "workers" in fields) load();
      } else if (news.gone.includes(id)) load();
      else if (news.decided_s !== decided && Date.now() - asked > 5000) {
        asked = Date.now();
        load(); // a scheduling round may have changed the reason
      }
      decided = news.decided_s;
    };
    const offs = [on("resync", load), on("event", (event) => event.job === id && load()), on("beat", beat)];
    return () => {
      offs.forEach((off) => off());
      load.cancel();
    };
  }, [id]);
  return { job, why, problem, load };
}

export function JobView({ id }) {
  const { job, why, problem, load } = useJob(id);
  useEffect(() => {
    document.title = `${job?.name ?? id} · Fairlead`;
  }, [id, job?.name]);
  if (!job) {
    return html`<div key="head" class="head job-head"><div><h1 tabindex="-1">${id}</h1></div></div>
      ${problem ? html`<${Trouble} problem=${problem} again=${load} />` : html`<p class="loading">Loading job …</p>`}`;
  }
  return html`
    <p class="crumbs">${job.labels?.pipeline ? html`<a href=${href("pipelines")}>Pipelines</a> <span aria-hidden="true">/</span>
      <a href=${href("pipeline", job.labels.pipeline)}>${job.labels.pipeline}</a>` : html`<a href=${href("queue")}>Queue</a>`} <span aria-hidden="true">/</span></p>
    <div key="head" class="head job-head">
      <div><h1 tabindex="-1">${job.name}</h1>
        <p class="sub"><${State} of=${job.state} /><${Tenant} name=${job.tenant} /><span class="mono dim">${job.id}</span></p></div>
      <${Actions} job=${job} load=${load} />
    </div>
    <${Trouble} problem=${problem} again=${load} />
    <${Summary} job=${job} />
    <${Reason} job=${job} why=${why} />
    ${ended(job) ? html`<${Result} job=${job} />` : null}
    ${job.total_steps || job.step ? html`<${Curves} job=${job} />` : null}
    <${Gantt} job=${job} />
    <${Logs} job=${job} />
    <${Plan} job=${job} />
  `;
}

function Summary({ job }) {
  const now = useNow();
  const part = job.total_steps ? job.step / job.total_steps : null;
  const left = job.state === "running" && part > 0.01 && job.samples_per_s ? remaining(job, now) : null;
  const since = job.started_s ?? null;
  return html`
    ${part == null ? null : html`<div class="whole"><${Meter} part=${part} tone=${job.state === "failed" ? "bad" : ""} />
      <span class="num">${format.percent(part, part < 1 ? 1 : 0)}</span>
      <span class="dim num">step ${format.number(job.step)} of ${format.number(job.total_steps)}${left == null ? "" : `, about ${format.duration(left)} left`}</span></div>`}
    <dl class="figures">
      <${Figure} label="Workers" value=${job.workers || format.NONE} note=${`of ${job.min_workers === job.max_workers ? job.max_workers : `${job.min_workers}–${job.max_workers}`}`} />
      <${Figure} label="Loss" value=${format.figure(job.loss)} note=${job.total_steps ? `epoch ${job.epoch + 1}` : ""} />
      <${Figure} label="Samples per second" value=${job.samples_per_s ? format.figure(job.samples_per_s) : format.NONE} />
      <${Figure} label=${ended(job) ? "Run time" : since ? "Running for" : "Waiting for"}
        value=${format.duration((job.finished_s ?? now) - (since ?? job.submitted_s))}
        note=${since ? `after ${format.duration(since - job.submitted_s)} in the queue` : ""} />
      <${Figure} label="Generation" value=${job.generation || format.NONE}
        note=${[[job.resizes, "resize"], [job.recoveries, "recovery", "recoveries"], [job.preemptions, "preemption"]]
          .filter(([count]) => count).map((each) => format.plural(...each)).join(", ")} />
      <${Figure} label="SLA" value=${promise(job)} note=${kept(job)} tone=${job.sla_met === false ? "bad" : ""} />
    </dl>`;
}

function remaining(job, now) {
  const ran = now - job.started_s;
  return ran > 2 ? (ran * (job.total_steps - job.step)) / job.step : null;
}

function promise({ sla }) {
  if (sla.finish_by_s) return `end by ${format.time(sla.finish_by_s)}`;
  return sla.start_by_s ? `start by ${format.time(sla.start_by_s)}` : "none";
}

const kept = (job) => (job.sla_met == null ? "" : job.sla_met ? "met" : "missed");

function Reason({ job, why }) {
  const reason = why?.reason ?? job.reason;
  if (!reason && !job.message) return null;
  const expected = why?.expected_start_s ?? job.expected_start_s;
  return html`<section class=${`panel reason ${job.state === "failed" ? "bad" : ""}`} aria-labelledby="why-title">
    <h2 id="why-title">${job.state === "queued" ? "Why it waits" : ended(job) ? "How it ended" : "Why it runs this way"}</h2>
    <p>${job.state === "failed" && job.message ? job.message : reason?.text}</p>
    ${job.state === "queued" ? html`<ul class="plain">
      <li>Expected start: ${format.instant(expected) === null ? "unknown" : html`<b><${Time} at=${expected} /></b>`}</li>
      ${(why?.unblocks ?? []).map((text) => html`<li key=${text}>To start it sooner: ${text}</li>`)}
      ${why?.ahead?.length ? html`<li>${format.plural(why.ahead.length, "job")} ahead in the queue</li>` : null}
    </ul>` : null}
  </section>`;
}

// ---------------------------------------------------------------- cancelling and repeating

function Actions({ job, load }) {
  const [asking, setAsking] = useState(null);
  const key = useMemo(() => crypto.randomUUID?.() ?? String(Math.random()), [asking]); // repeated requests create one job
  if (!may("member")) return null;
  const cancel = async () => {
    await request(jobPath(job.id, "/cancel"), { method: "POST" });
    say(`${job.name} is being cancelled`);
    load();
  };
  const repeat = async () => {
    const made = await request("jobs", { method: "POST", body: job.spec, headers: { "Idempotency-Key": key } });
    say(`${made.name} was submitted again`, { link: href("job", made.id), label: made.id });
    go("job", made.id);
  };
  const over = ended(job);
  return html`<div class="actions">
    <button class="button" onClick=${() => setAsking("repeat")}>Submit again</button>
    ${over ? null : html`<button class="button danger-quiet" disabled=${job.state === "stopping"} onClick=${() => setAsking("cancel")}>Cancel job</button>`}
    ${asking === "cancel" ? html`<${Confirm} title=${`Cancel ${job.name}?`} verb="Cancel the job" doIt=${cancel} onClose=${() => setAsking(null)}>
      <p>Its ${job.workers ? format.plural(job.workers, "worker") : "workers"} will be stopped. Logs and files written so far are kept. A cancelled job cannot be resumed.</p>
    <//>` : null}
    ${asking === "repeat" ? html`<${Confirm} title=${`Submit ${job.name} again?`} verb="Submit" tone="primary" doIt=${repeat} onClose=${() => setAsking(null)}>
      <p>Submits a new job with the same spec and code for tenant ${job.tenant}.</p>
    <//>` : null}
  </div>`;
}
