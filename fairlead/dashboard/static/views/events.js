// The events view: newest first, updated live.

import * as format from "../format.js";
import { events, loadEvents } from "../model.js";
import { Empty, JobLink, Tenant, Time, Trouble } from "../parts.js";
import { setQuery } from "../router.js";
import { html, memo, useCell, useEffect, useMemo, useState } from "../ui.js";
import { VirtualTable, useNarrow } from "../virtual.js";

const COLUMNS = [{ name: "Time" }, { name: "Kind" }, { name: "Event" }, { name: "Tenant" }];
const TONES = [
  [/lost|fail|nonsense|refus/, "bad"], [/recover|succe|finish|joined|ready/, "good"],
  [/cancel|preempt|drain|cordon|warn|budget/, "warn"],
];

export function EventsView({ query }) {
  const all = useCell(events), narrow = useNarrow();
  const [text, setText] = useState(query.get("text") ?? "");
  const [problem, setProblem] = useState(null);
  const load = () => loadEvents().then(() => setProblem(null), setProblem);
  useEffect(() => {
    document.title = "Events · Fairlead";
    load();
  }, []);
  const shown = useMemo(() => all.filter(holds(text)), [all, text]);
  const choose = (value) => {
    setText(value);
    setQuery("events", { text: value });
  };
  return html`
    <div class="head"><h1 tabindex="-1">Events</h1><p class="count">${format.plural(shown.length, "event")}</p></div>
    <form class="filters" role="search" aria-label="Filter events" onSubmit=${(event) => event.preventDefault()}>
      <label class="grow">Containing <input type="search" placeholder="Kind, job, node or text" value=${text}
        onInput=${(event) => choose(event.target.value)} /></label>
    </form>
    <${Trouble} problem=${problem} again=${load} />
    ${shown.length ? html`<${VirtualTable} label="Events" columns=${COLUMNS} items=${shown} keyOf=${(event) => event.id}
      height=${narrow ? 84 : 40} row=${(event) => html`<${Row} event=${event} />`} rowClass=${() => "event-row"} />`
      : problem ? null : html`<${Empty} title="No events" />`}
  `;
}

function holds(text) {
  const part = text.trim().toLowerCase();
  return (event) => !part || `${event.kind} ${event.text} ${event.tenant ?? ""} ${event.node ?? ""}`.toLowerCase().includes(part);
}

export const tone = (kind) => TONES.find(([pattern]) => pattern.test(kind))?.[1] ?? "";

const Row = memo(({ event }) => html`
  <td class="c-time num"><${Time} at=${event.time_s} /></td>
  <td class="c-kind"><span class=${`kind ${tone(event.kind)}`}>${event.kind}</span></td>
  <td class="c-what"><span class="why" title=${event.text}>${event.job ? html`<${JobLink} id=${event.job} />${" "}${without(event.text, event.job)}` : event.text}</span></td>
  <td class="c-tenant">${event.tenant ? html`<${Tenant} name=${event.tenant} />` : html`<span class="dim">platform</span>`}</td>
`);

// Removes the job's id from the text: it is shown as a link.
function without(text, job) {
  return text.startsWith(job) ? text.slice(job.length).replace(/^[:\s]+/, "") : text;
}
