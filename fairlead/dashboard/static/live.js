// The one stream that keeps the page true: events and beats as they come, and a new look at everything after a gap.

import { request, who } from "./api.js";
import { read } from "./sse.js";
import { cell } from "./ui.js";

const FIRST_MS = 500, LONGEST_MS = 10_000;

// connecting, live, lost (with when it is tried again), resting (nobody looks)
export const link = cell({ state: "connecting" });

const listeners = { event: new Set(), beat: new Set(), resync: new Set() };
let controller = null, lastId = null, known = false;

// Calls back for each "event", each "beat", or on "resync": when what one knows may be old.
export function on(kind, listener) {
  listeners[kind].add(listener);
  return () => listeners[kind].delete(listener);
}

function tell(kind, value) {
  for (const listener of [...listeners[kind]]) listener(value);
}

function hear({ kind, id, data }) {
  if (id) lastId = id;
  const body = JSON.parse(data);
  if (kind === "beat") tell("beat", body);
  else if (kind !== "error") tell("event", body);
}

async function follow(signal) {
  let wait = FIRST_MS;
  while (!signal.aborted) {
    const opened = () => {
      wait = FIRST_MS;
      link.set({ state: "live" });
      known = true;
      tell("resync"); // what was loaded before it opened may be old by now
    };
    try {
      const query = { beats: "true", after: lastId ?? -1 };
      await read("events/stream", { query, signal, onOpen: opened, onEvent: hear });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 422) lastId = null;
    }
    if (signal.aborted) return;
    link.set({ state: "lost", until: Date.now() + wait });
    await pause(wait, signal);
    wait = Math.min(LONGEST_MS, wait * 1.7);
    if (signal.aborted || !(await stillKnown())) return;
  }
}

// A stream that breaks does not say why: the session may be over, or the platform may only be away.
async function stillKnown() {
  try {
    await request("session");
  } catch {
    return who.get() !== null;
  }
  return true;
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    const now = () => {
      clearTimeout(timer);
      done();
    };
    signal.addEventListener("abort", now, { once: true });
    addEventListener("online", now, { once: true });
  });
}

export function start() {
  if (controller) return;
  controller = new AbortController();
  link.set({ state: known ? "lost" : "connecting" });
  follow(controller.signal);
}

export function stop(state = "resting") {
  controller?.abort();
  controller = null;
  link.set({ state });
}

// Forget whose events these were: the next one who logs in may see others.
export function forget() {
  stop("connecting");
  lastId = null;
  known = false;
}

// A browser gives one host six connections; tabs that nobody sees shall not hold them.
document.addEventListener("visibilitychange", () => {
  if (!who.get()) return;
  if (document.hidden) stop();
  else start();
});
