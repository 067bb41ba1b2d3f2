// Where one is, from the part of the address behind the #: views can be linked to, and Back works.

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

// Filters stand in the address, but do not fill the history.
export function setQuery(view, values) {
  const known = Object.entries(values).filter(([, value]) => value);
  const text = new URLSearchParams(known).toString();
  history.replaceState(null, "", `#/${view}${text ? `?${text}` : ""}`);
}
