// Components shared by the views: states, meters, dialogs, messages.

import * as format from "./format.js";
import { hue } from "./model.js";
import { href } from "./router.js";
import { cell, html, own, useCell, useEffect, useRef, useState } from "./ui.js";

// States differ by shape and word, not by colour alone.
const SHAPES = {
  queued: "M8 2.75a5.25 5.25 0 1 0 0 10.5 5.25 5.25 0 0 0 0-10.5Z|stroke",
  starting: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 1.8a4.2 4.2 0 1 0 0 8.4Z|solid",
  running: "M4.5 2.9v10.2c0 .6.7 1 1.2.7l8-5.1c.5-.3.5-1 0-1.3l-8-5.2c-.5-.3-1.2 0-1.2.7Z|solid",
  stopping: "M4 4h8v8H4z|solid",
  succeeded: "m3.2 8.6 3.1 3.1 6.5-7|stroke",
  failed: "m4 4 8 8M12 4l-8 8|stroke",
  cancelled: "M3 8h10|stroke",
  waiting: "M5 2.5h6M5 13.5h6M5.5 2.5c0 3 5 4 5 5.5s-5 2.5-5 5.5M10.5 2.5c0 3-5 4-5 5.5s5 2.5 5 5.5|stroke",
  cached: "m2.6 8.6 2.6 2.6 4.6-5.2M7.6 11.2 13.4 5|stroke",
  skipped: "M3.5 4l4 4-4 4M9 4l4 4-4 4|stroke",
  ready: "M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9Z|solid",
  cordoned: "M5.5 3v10M10.5 3v10|stroke",
  draining: "M8 2.5v9m0 0L4.5 8M8 11.5 11.5 8M3.5 13.75h9|stroke",
  drained: "M3.5 13.75h9M4.5 7l2.4 2.6L11.6 4|stroke",
  outdated: "M8 3a5 5 0 1 0 5 5M8 5v3.2l2 1.3M13 3v3h-3|stroke",
  asleep: "M12.9 9.9A5.6 5.6 0 1 1 6.1 3.1a4.6 4.6 0 0 0 6.8 6.8Z|stroke",
  waking: "M12.9 9.9A5.6 5.6 0 1 1 6.1 3.1a4.6 4.6 0 0 0 6.8 6.8Z|solid",
  lost: "M8 2.2 14.3 13.5H1.7ZM8 6.3v3.4m0 1.6v.2|stroke",
  live: "M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9Z|solid",
};

export function Shape({ of, className = "" }) {
  const [path, kind] = (own(SHAPES, of) ?? SHAPES.queued).split("|");
  return html`<svg class=${`shape ${kind} ${className}`} viewBox="0 0 16 16" aria-hidden="true"><path d=${path} /></svg>`;
}

export function State({ of }) {
  return html`<span class=${`state s-${of}`}><${Shape} of=${of} />${of}</span>`;
}

export function Tenant({ name }) {
  return html`<span class=${`tenant ${hue(name)}`}><i class="swatch" aria-hidden="true"></i>${name}</span>`;
}

export function JobLink({ id, children }) {
  return html`<a href=${href("job", id)}>${children ?? id}</a>`;
}

// A bar for a fraction; the text beside it carries the same information.
export function Meter({ part, tone = "" }) {
  const width = `${Math.round(Math.min(1, Math.max(0, part ?? 0)) * 1000) / 10}%`;
  return html`<span class=${`meter ${tone}`} aria-hidden="true"><i style=${{ width }}></i></span>`;
}

export function Time({ at }) {
  const date = format.instant(at);
  if (date === null) return html`<span class="dim">${format.NONE}</span>`;
  return html`<time datetime=${date.toISOString()} title=${format.moment(at)}>${format.time(at)}</time>`;
}

export function Figure({ label, value, note, tone = "" }) {
  return html`<div class=${`figure ${tone}`}>
    <dt>${label}</dt>
    <dd><b>${value}</b>${note ? html` <small>${note}</small>` : null}</dd>
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="title">${title}</p>${children ? html`<p>${children}</p>` : null}</div>`;
}

export function Trouble({ problem, again }) {
  if (!problem) return null;
  return html`<div class="trouble" role="alert">
    <${Shape} of="lost" />
    <div><p>${problem.message}</p>${problem.fix ? html`<p class="dim">${problem.fix}</p>` : null}</div>
    ${again ? html`<button class="button small" onClick=${again}>Try again</button>` : null}
  </div>`;
}

// ---------------------------------------------------------------- messages

const messages = cell([]);
let next = 0;

export function say(text, { tone = "good", link, label } = {}) {
  const id = ++next;
  messages.update((all) => [...all.slice(-3), { id, text, tone, link, label }]);
  setTimeout(() => messages.update((all) => all.filter((each) => each.id !== id)), tone === "bad" ? 12_000 : 6_000);
}

export const complain = (problem) =>
  say(problem.fix ? `${problem.message}: ${problem.fix}` : problem.message, { tone: "bad" });

export function Messages() {
  const all = useCell(messages);
  return html`<div class="messages" role="status" aria-live="polite">
    ${all.map(
      (each) => html`<p key=${each.id} class=${`message ${each.tone}`}>
        <${Shape} of=${each.tone === "bad" ? "failed" : "succeeded"} />
        <span>${each.text}${each.link ? html` <a href=${each.link}>${each.label}</a>` : null}</span>
      </p>`,
    )}
  </div>`;
}

// ---------------------------------------------------------------- dialogs

export function Dialog({ title, onClose, children, actions }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  const outside = (event) => event.target === box.current && onClose();
  return html`<dialog ref=${box} class="dialog" aria-labelledby="dialog-title" onCancel=${onClose} onClick=${outside}>
    <div class="inside">
      <h2 id="dialog-title">${title}</h2>
      ${children}
      <div class="actions">${actions}</div>
    </div>
  </dialog>`;
}

// Asks before an action that cannot be undone; stays open with the error if it fails.
export function Confirm({ title, children, verb, tone = "danger", doIt, onClose }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const act = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await doIt();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} actions=${html`
    <button class="button" onClick=${onClose}>Back</button>
    <button class=${`button ${tone}`} disabled=${busy} onClick=${act}>${verb}</button>
  `}>
    ${children}
    <${Trouble} problem=${problem} />
  <//>`;
}
