// The workers' output, followed line by line. It is untrusted, so it becomes text nodes only.

import { jobPath } from "../api.js";
import { on } from "../live.js";
import { read } from "../sse.js";
import { html, useEffect, useRef, useState } from "../ui.js";

const KEPT = 3000, FIRST = 1000;

export function Logs({ job }) {
  const box = useRef(null), following = useRef(true);
  const [worker, setWorker] = useState("");
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(true);
  const [state, setState] = useState("loading");
  const started = job.generation > 0;
  const workers = [...new Set(job.generations.flatMap((each) => each.members.map((member) => member.worker)))];

  useEffect(() => {
    if (!started) return setState("waiting");
    return listen(job.id, worker, box.current, following, setState);
  }, [job.id, worker, started]);

  const scrolled = () => {
    const element = box.current;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
    if (atEnd !== following.current) {
      following.current = atEnd;
      setFollow(atEnd);
    }
  };
  const choose = (event) => {
    following.current = event.target.checked;
    setFollow(event.target.checked);
    if (event.target.checked) box.current.scrollTop = box.current.scrollHeight;
  };
  return html`<section class="panel" aria-labelledby="logs-title">
    <div class="panel-head"><h2 id="logs-title">Logs</h2>
      <div class="tools">
        <span class="dim">${WORDS[state]}</span>
        ${workers.length > 1 ? html`<label>Worker <select value=${worker} onChange=${(event) => setWorker(event.target.value)}>
          <option value="">all</option>${workers.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
        </select></label>` : null}
        <label class="check"><input type="checkbox" checked=${follow} onChange=${choose} /> follow</label>
        <label class="check"><input type="checkbox" checked=${wrap} onChange=${(event) => setWrap(event.target.checked)} /> wrap</label>
      </div></div>
    <div class=${`log ${wrap ? "wrap" : ""}`} ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label="Log lines"></div>
  </section>`;
}

const WORDS = {
  loading: "loading …", waiting: "no output before the job starts", following: "following", ended: "complete", away: "reconnecting …",
};

// Follows the log, resuming after a lost connection. Returns a function that stops it.
function listen(id, worker, box, following, setState) {
  const over = new AbortController();
  const sink = lines(box, following);
  let lastId = null, done = false;
  const onEvent = ({ kind, id: place, data }) => {
    if (place) lastId = place;
    if (kind === "line") sink.add(JSON.parse(data));
    if (kind === "end") done = true;
  };
  (async () => {
    while (!over.signal.aborted && !done) {
      try {
        const query = { follow: "true", tail: FIRST, worker };
        await read(jobPath(id, "/logs"), { query, lastId, signal: over.signal, onOpen: () => setState("following"), onEvent });
      } catch {
        if (over.signal.aborted) return;
      }
      if (done) return setState("ended");
      if (over.signal.aborted) return;
      setState("away");
      await new Promise((go) => {
        const off = on("resync", go);
        setTimeout(go, 3000);
        over.signal.addEventListener("abort", go, { once: true });
        over.signal.addEventListener("abort", off, { once: true });
      });
    }
  })();
  return () => {
    over.abort();
    sink.clear();
  };
}

// Appends lines once per frame and drops the oldest beyond the limit.
function lines(box, following) {
  let waiting = [], frame = null;
  function flush() {
    frame = null;
    const part = document.createDocumentFragment();
    for (const { worker, text } of waiting.slice(-KEPT)) part.append(line(worker, text));
    waiting = [];
    box.append(part);
    while (box.childElementCount > KEPT) box.firstElementChild.remove();
    if (following.current) box.scrollTop = box.scrollHeight;
  }
  return {
    add(each) {
      waiting.push(each);
      frame ??= requestAnimationFrame(flush);
    },
    clear() {
      cancelAnimationFrame(frame);
      waiting = [];
      box.replaceChildren();
    },
  };
}

// eslint-disable-next-line no-control-regex
const CONTROL = /\u001b\[[0-9;?]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f]/g; // terminal colours and other control sequences

function line(worker, text) {
  const row = document.createElement("div"), tag = document.createElement("span"), body = document.createElement("span");
  row.className = "line";
  tag.className = "tag";
  tag.textContent = worker;
  body.textContent = text.replace(CONTROL, "");
  row.append(tag, body);
  return row;
}
