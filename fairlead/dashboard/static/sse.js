// Server-sent events over fetch: unlike EventSource it reports HTTP status, all event kinds and silence.

import { address, problemOf } from "./api.js";

const SILENCE_MS = 45_000; // the platform sends a heartbeat every 15 s

// Reads until the stream ends or is aborted. `onOpen` is called once; `onEvent` with {kind, id, data} for each event.
export async function read(path, { query, lastId, signal, onOpen, onEvent }) {
  const quiet = new AbortController();
  const stop = () => quiet.abort();
  signal.addEventListener("abort", stop);
  let alarm = setTimeout(stop, SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
    const response = await fetch(address(path, query), { headers, signal: quiet.signal, credentials: "same-origin" });
    if (!response.ok) throw await problemOf(response);
    onOpen?.();
    const feed = parser(onEvent);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(alarm);
      alarm = setTimeout(stop, SILENCE_MS);
      feed(value);
    }
  } finally {
    clearTimeout(alarm);
    signal.removeEventListener("abort", stop);
  }
}

// Parses text chunks into events, following the HTML standard.
export function parser(onEvent) {
  let rest = "", kind = "message", data = [], id;
  function line(text) {
    if (text === "") {
      if (data.length) onEvent({ kind, id, data: data.join("\n") });
      kind = "message";
      data = [];
      id = undefined;
      return;
    }
    const colon = text.indexOf(":");
    const name = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + (text[colon + 1] === " " ? 2 : 1));
    if (name === "event") kind = value;
    else if (name === "data") data.push(value);
    else if (name === "id") id = value;
  }
  return (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const each of lines) line(each);
  };
}
