// Formats numbers, times and names.

const group = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const NONE = "–";

const LAST_S = 8.64e12; // the largest time a Date holds, before and after 1970

// The time as a Date, or null if it is invalid.
export function instant(seconds) {
  return seconds != null && Math.abs(seconds) <= LAST_S ? new Date(seconds * 1000) : null;
}

export function number(value) {
  return value == null ? NONE : group.format(value);
}

// A number with four significant digits.
export function figure(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("e+", "e");
  return size >= 1000 ? group.format(value) : String(Number(value.toPrecision(4)));
}

export function cores(value) {
  return `${figure(Math.round(value * 100) / 100)} ${value === 1 ? "core" : "cores"}`;
}

export function percent(fraction, digits = 0) {
  return fraction == null ? NONE : `${(fraction * 100).toFixed(digits)} %`;
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  while (value >= 999.5 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${value >= 100 || place === 0 ? Math.round(value) : value.toFixed(1)} ${units[place]}`;
}

export function duration(seconds) {
  if (seconds == null || !(Math.abs(seconds) <= LAST_S)) return NONE;
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function time(seconds) {
  const date = instant(seconds);
  if (date === null) return NONE;
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

export function moment(seconds) {
  const date = instant(seconds);
  return date === null ? "" : whole.format(date);
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

// Sorts node-2 before node-10.
const natural = new Intl.Collator("en", { numeric: true });
export const byName = (left, right) => natural.compare(left.name, right.name);
