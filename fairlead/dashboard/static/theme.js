// Dark or light: as the machine wishes, unless one chose; and the colours for what is drawn by hand.

import { cell } from "./ui.js";

const KEY = "fairlead-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be closed
  }
}

let chosen = kept();
export const theme = cell(current());

function current() {
  return chosen ?? (dark.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = current();
  theme.set(current());
}

export function toggle() {
  chosen = current() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // it holds for this visit only
  }
  apply();
}

dark.addEventListener("change", apply);
apply();

// What a colour of the style sheet is at the moment, as a canvas takes it.
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
