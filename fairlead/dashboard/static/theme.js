// Dark or light theme: the system's, unless the user chose one; and colours for canvas drawings.

import { cell } from "./ui.js";

const KEY = "fairlead-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be blocked
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
    // the choice lasts for this visit only
  }
  apply();
}

dark.addEventListener("change", apply);
apply();

// A CSS variable's present colour in a form that canvas accepts.
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
