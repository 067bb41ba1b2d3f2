// The page: login, navigation and the frame around the views.

import { askWho, logOut, who } from "./api.js";
import { forget, link, on, start } from "./live.js";
import { clearAll, loadTenants } from "./model.js";
import { Messages, Shape, Trouble, complain } from "./parts.js";
import { route } from "./router.js";
import { theme, toggle } from "./theme.js";
import { Boundary, coalesced, html, own, render, useCell, useEffect, useRef, useState } from "./ui.js";
import { ClusterView } from "./views/cluster.js";
import { EventsView } from "./views/events.js";
import { JobView } from "./views/job.js";
import { LoginView } from "./views/login.js";
import { PipelineView, PipelinesView } from "./views/pipelines.js";
import { QueueView } from "./views/queue.js";
import { TenantsView } from "./views/tenants.js";

const VIEWS = {
  cluster: { name: "Cluster", draw: ClusterView, icon: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.1M6 13.5h.1" },
  queue: { name: "Queue", draw: QueueView, icon: "M3 5h14M3 10h14M3 15h9" },
  pipelines: { name: "Pipelines", draw: PipelinesView, icon: "M3 3.5h5v4H3zM12 3.5h5v4h-5zM12 12.5h5v4h-5zM8 5.5h4M10 5.5v9h2" },
  tenants: { name: "Tenants", draw: TenantsView, icon: "M3 16V9m4.7 7V5m4.6 11v-8m4.7 8V3" },
  events: { name: "Events", draw: EventsView, icon: "M3 10h3l2.5-6 4 12 2.2-6H17" },
};

function Brand() {
  return html`<span class="brand">
    <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 3.2a8.8 8.8 0 1 0 0 17.6 8.8 8.8 0 0 0 0-17.6Z" />
      <path d="M1.5 10h21M1.5 14h21" /></svg>
    Fairlead
  </span>`;
}

function Nav({ view }) {
  const present = own({ job: "queue", pipeline: "pipelines" }, view) ?? view;
  return html`<nav class="nav" aria-label="Views"><ul>
    ${Object.entries(VIEWS).map(
      ([key, { name, icon }]) => html`<li key=${key}>
        <a href=${`#/${key}`} aria-current=${key === present ? "page" : undefined}>
          <svg viewBox="0 0 20 20" aria-hidden="true"><path d=${icon} /></svg><span>${name}</span>
        </a>
      </li>`,
    )}
  </ul></nav>`;
}

const LINK = {
  live: ["live", "Live"],
  connecting: ["starting", "Connecting"],
  lost: ["lost", "Disconnected"],
  resting: ["cordoned", "Paused"],
};

function Link() {
  const { state } = useCell(link);
  const [shape, text] = LINK[state];
  return html`<span class=${`link l-${state}`} role="status"><${Shape} of=${shape} />${text}</span>`;
}

// Shown only after 0.9 s, so that a short break does not flash a warning.
function Away() {
  const { state } = useCell(link);
  const [long, setLong] = useState(false);
  useEffect(() => {
    if (state !== "lost") return setLong(false);
    const timer = setTimeout(() => setLong(true), 900);
    return () => clearTimeout(timer);
  }, [state]);
  return html`<div class="away" role="alert" hidden=${!(state === "lost" && long)}>
    ${state === "lost" && long
      ? html`<${Shape} of="lost" /> Disconnected from the platform. This page may be out of date; reconnecting.`
      : null}
  </div>`;
}

function ThemeSwitch() {
  const present = useCell(theme);
  const other = present === "dark" ? "light" : "dark";
  const icon = present === "dark"
    ? "M10 3V1.5M10 18.5V17M3 10H1.5M18.5 10H17M5 5 4 4m12 12-1-1M5 15l-1 1M16 4l-1 1M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7Z"
    : "M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7Z";
  return html`<button type="button" class="icon-button" onClick=${toggle} aria-label=${`Use the ${other} theme`} title=${`Use the ${other} theme`}>
    <svg viewBox="0 0 20 20" aria-hidden="true"><path d=${icon} /></svg>
  </button>`;
}

function Me({ me }) {
  const leave = () => logOut().catch(complain);
  return html`<div class="me">
    <span class="who"><b>${me.tenant ?? "platform"}</b><small>${me.role}</small></span>
    <${ThemeSwitch} />
    <button type="button" class="icon-button" onClick=${leave} aria-label="Log out" title="Log out">
      <svg viewBox="0 0 20 20" aria-hidden="true"><path d="M8 3H4v14h4M13 6l4 4-4 4M17 10H8" /></svg>
    </button>
  </div>`;
}

// Shown instead of a view that fails, so that the other views stay usable.
const unseen = (error, again) => html`<h1 tabindex="-1">This view cannot be shown</h1>
  <${Trouble} again=${again} problem=${{
    message: `The platform sent unexpected data: ${error.message}`,
    fix: "the other views still work; reload the page to get its newest version",
  }} />`;

function Frame({ me }) {
  const { view, rest, query } = useCell(route);
  const main = useRef(null), first = useRef(true);
  const place = [view, ...rest].join("/");
  useEffect(() => {
    if (!first.current) main.current?.querySelector("h1")?.focus();
    first.current = false;
    scrollTo(0, 0);
  }, [place]);
  const skip = (event) => {
    event.preventDefault();
    main.current.querySelector("h1")?.focus();
  };
  const chosen = own({ job: JobView, pipeline: PipelineView }, view) ?? own(VIEWS, view)?.draw;
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="side">
      <a class="home" href="#/cluster" aria-label="Fairlead: show the cluster"><${Brand} /></a>
      <${Nav} view=${view} />
      <div class="foot"><${Link} /><${Me} me=${me} /></div>
    </header>
    <main class="main" id="main" ref=${main}>
      <${Away} />
      ${chosen
        ? html`<${Boundary} key=${place} instead=${unseen}><${chosen} id=${rest[0]} query=${query} /><//>`
        : html`<h1 tabindex="-1">Page not found</h1><p><a href="#/cluster">Show the cluster</a></p>`}
    </main>
    <${Messages} />
  </div>`;
}

// Tenants' devices and job counts change with every event of their jobs.
const reloadTenants = coalesced(() => loadTenants().catch(() => {}), 3000);
on("resync", reloadTenants);
on("event", (event) => event.tenant && reloadTenants());

function App() {
  const me = useCell(who);
  const [problem, setProblem] = useState(null);
  const [known, setKnown] = useState(false);
  useEffect(() => {
    let timer = null;
    const ask = () => askWho().then(() => setProblem(null), (error) => {
      setProblem(error);
      timer = setTimeout(ask, 2000);
    });
    ask();
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => {
    if (!me) {
      setKnown(false);
      forget();
      clearAll();
      return;
    }
    // Tenants first: the other views use their colours.
    loadTenants().catch(() => {}).finally(() => setKnown(true));
    start();
  }, [me]);
  if (me === undefined) {
    return problem ? html`<main class="alone"><p role="alert">${problem.message}; retrying.</p></main>` : null;
  }
  if (me === null) return html`<${LoginView} brand=${html`<${Brand} />`} theme=${html`<${ThemeSwitch} />`} />`;
  return known ? html`<${Frame} me=${me} />` : null;
}

render(html`<${App} />`, document.getElementById("app"));
