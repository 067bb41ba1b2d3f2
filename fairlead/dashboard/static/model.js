// The page's copy of nodes, tenants, jobs and events: loaded by the views, updated by the event stream.

import { request } from "./api.js";
import { on } from "./live.js";
import { cell, coalesced } from "./ui.js";

const IDS_PER_REQUEST = 150;
const KEPT_EVENTS = 2000;
const PAGE = 500;
const PRELOADED = 2000; // jobs loaded page by page without scrolling

export const nodes = cell(null); // Map of name -> node, or null before the first load
export const tenants = cell(null);
export const events = cell([]); // newest first
export const jobs = cell({ items: new Map(), total: null, next: null, loading: false, problem: null });

// ---------------------------------------------------------------- nodes and tenants

export async function loadNodes() {
  const found = await request("nodes");
  nodes.set(new Map(found.map((node) => [node.name, node])));
}

export async function loadTenants() {
  tenants.set(await request("tenants"));
}

// A tenant's colour, by its place in the list of tenants; grey for tenants that are not visible.
export function hue(tenant) {
  if (!tenant) return "t-none";
  const place = (tenants.get() ?? []).findIndex((each) => each.name === tenant);
  return place < 0 ? "t-none" : `t-${place % 10}`;
}

// ---------------------------------------------------------------- jobs of the queue

let filter = {}, asked = 0;

function change(part) {
  jobs.update((state) => ({ ...state, ...part }));
}

export async function loadJobs(wanted) {
  if (wanted) filter = wanted;
  const turn = ++asked;
  change({ loading: true, problem: null });
  try {
    const page = await request("jobs", { query: { ...filter, limit: PAGE } });
    if (turn !== asked) return; // a newer load has started
    change({ items: byId(page.items), total: page.total, next: page.next, loading: false });
    while (turn === asked && jobs.get().next && jobs.get().items.size < PRELOADED) await moreJobs();
  } catch (problem) {
    if (turn === asked) change({ loading: false, problem });
  }
}

export async function moreJobs() {
  const { next, loading } = jobs.get();
  if (!next || loading) return;
  const turn = asked;
  change({ loading: true });
  try {
    const page = await request("jobs", { query: { ...filter, limit: PAGE, cursor: next } });
    if (turn !== asked) return;
    change({ items: new Map([...jobs.get().items, ...byId(page.items)]), next: page.next, loading: false });
  } catch (problem) {
    if (turn === asked) change({ loading: false, next: null, problem });
  }
}

const byId = (items) => new Map(items.map((job) => [job.id, job]));

const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const ended = (job) => ENDED.has(job.state);

function fits(job) {
  if (filter.tenant && job.tenant !== filter.tenant) return false;
  if (!filter.state) return true;
  if (filter.state === "active") return !ended(job);
  if (filter.state === "ended") return ended(job);
  return filter.state.split(",").includes(job.state);
}

// Reloads changed jobs in batches.
const changed = new Set();
export const refreshJobs = coalesced(async () => {
  const ids = [...changed].slice(0, IDS_PER_REQUEST);
  for (const id of ids) changed.delete(id);
  if (!ids.length) return;
  try {
    const page = await request("jobs", { query: { ids: ids.join(","), limit: IDS_PER_REQUEST } });
    const { items, total } = jobs.get();
    const merged = new Map(items);
    for (const job of page.items) {
      if (fits(job)) merged.set(job.id, job);
      else merged.delete(job.id);
    }
    change({ items: merged, total: total === null ? null : total + merged.size - items.size });
  } catch {
    return; // the stream reports a lost connection, and everything is reloaded when it is back
  }
  if (changed.size) refreshJobs();
}, 700);

export function markChanged(ids) {
  for (const id of ids) changed.add(id);
  if (changed.size) refreshJobs();
}

// ---------------------------------------------------------------- events

let loadedEvents = false;
export async function loadEvents() {
  merge(await request("events", { query: { after: -1000, limit: 1000 } }));
  loadedEvents = true;
}

function merge(fresh) {
  const known = events.get();
  const newest = known[0]?.id ?? 0;
  const later = fresh.filter((event) => event.id > newest).sort((a, b) => b.id - a.id);
  if (later.length) return events.set([...later, ...known].slice(0, KEPT_EVENTS));
  const oldest = known.at(-1)?.id ?? Infinity;
  const earlier = fresh.filter((event) => event.id < oldest).sort((a, b) => b.id - a.id);
  if (earlier.length) events.set([...known, ...earlier].slice(0, KEPT_EVENTS));
}

// ---------------------------------------------------------------- updates from the event stream

let waiting = [];
const takeEvents = coalesced(() => {
  const fresh = waiting;
  waiting = [];
  merge(fresh);
}, 250);

on("event", (event) => {
  waiting.push(event);
  takeEvents();
  if (event.job && jobs.get().total !== null) markChanged([event.job]);
});

on("beat", (beat) => {
  const present = nodes.get();
  if (present && Object.keys(beat.nodes).length) {
    const merged = new Map(present);
    for (const [name, fields] of Object.entries(beat.nodes)) {
      const node = merged.get(name);
      if (node) merged.set(name, { ...node, ...fields });
      else if (loading === null) loading = loadNodes().catch(() => {}).finally(() => (loading = null)); // a new node
    }
    nodes.set(merged);
  }
  const { items } = jobs.get();
  const known = Object.entries(beat.jobs).filter(([id]) => items.has(id));
  if (known.length) {
    const merged = new Map(items);
    for (const [id, fields] of known) merged.set(id, { ...merged.get(id), ...fields });
    change({ items: merged });
  }
  markChanged(beat.gone.filter((id) => items.has(id)));
});
let loading = null;

on("resync", () => {
  if (loadedEvents) loadEvents().catch(() => {});
});

export function clearAll() {
  nodes.set(null);
  tenants.set(null);
  events.set([]);
  loadedEvents = false;
  asked += 1;
  changed.clear();
  jobs.set({ items: new Map(), total: null, next: null, loading: false, problem: null });
}
