// The current view, from the URL's fragment, so that links and the Back button work.

import { cell } from "./ui.js";

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view: view || "cluster", rest, query: new URLSearchParams(query || "") };
}

export const route = cell(parse());
addEventListener("hashchange", () => route.set(parse()));

export function href(view, ...rest) {
  return `#/${[view, ...rest].map(encodeURIComponent).join("/")}`;
}

export function go(...parts) {
  location.hash = href(...parts);
}

// Writes filters into the URL without new history entries.
export function setQuery(view, values) {
  const known = Object.entries(values).filter(([, value]) => value);
  const text = new URLSearchParams(known).toString();
  history.replaceState(null, "", `#/${view}${text ? `?${text}` : ""}`);
}
