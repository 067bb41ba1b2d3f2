// The page's one event stream: delivers events and heartbeats, and requests a full reload after a gap.

import { request, who } from "./api.js";
import { read } from "./sse.js";
import { cell } from "./ui.js";

const FIRST_MS = 500, LONGEST_MS = 10_000;

// connecting, live, lost (with the time of the next attempt), resting (the tab is hidden)
export const link = cell({ state: "connecting" });

const listeners = { event: new Set(), beat: new Set(), resync: new Set() };
let controller = null, lastId = null, known = false;

// Subscribes to "event", "beat", or "resync" (the page's data may be out of date).
export function on(kind, listener) {
  listeners[kind].add(listener);
  return () => listeners[kind].delete(listener);
}

function emit(kind, value) {
  for (const listener of [...listeners[kind]]) listener(value);
}

function onMessage({ kind, id, data }) {
  if (id) lastId = id;
  const body = JSON.parse(data);
  if (kind === "beat") emit("beat", body);
  else if (kind !== "error") emit("event", body);
}

async function follow(signal) {
  let wait = FIRST_MS;
  while (!signal.aborted) {
    const opened = () => {
      wait = FIRST_MS;
      link.set({ state: "live" });
      known = true;
      emit("resync"); // data loaded before the stream opened may be out of date
    };
    try {
      const query = { beats: "true", after: lastId ?? -1 };
      await read("events/stream", { query, signal, onOpen: opened, onEvent: onMessage });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 422) lastId = null;
    }
    if (signal.aborted) return;
    link.set({ state: "lost", until: Date.now() + wait });
    await pause(wait, signal);
    wait = Math.min(LONGEST_MS, wait * 1.7);
    if (signal.aborted || !(await sessionValid())) return;
  }
}

// After a broken stream: false if the session has ended, true if the platform may come back.
async function sessionValid() {
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

// Reset at logout: the next user may see other events.
export function forget() {
  stop("connecting");
  lastId = null;
  known = false;
}

// Browsers allow six connections per host, so hidden tabs close theirs.
document.addEventListener("visibilitychange", () => {
  if (!who.get()) return;
  if (document.hidden) stop();
  else start();
});
