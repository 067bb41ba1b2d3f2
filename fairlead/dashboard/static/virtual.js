// A table that renders only the visible rows, so that thousands of rows stay fast.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const BEYOND = 10; // extra rows above and below the visible ones, for scrolling and tabbing

// `columns`: [{ name, className }]; `row(item)` draws the cells of a row; all rows are `height` pixels high.
export function VirtualTable({ label, columns, items, keyOf, row, height, onSeen, rowClass }) {
  const box = useRef(null);
  const [view, setView] = useState({ first: 0, last: 40 });
  const measure = () => {
    const element = box.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / height) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / height) + BEYOND;
    setView((old) => (old.first === first && old.last === last ? old : { first, last }));
  };
  useLayoutEffect(measure, [items.length, height]);
  useEffect(() => {
    const watcher = new ResizeObserver(measure);
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, [height]);
  const last = Math.min(items.length, view.last), first = Math.min(view.first, last);
  const shown = items.slice(first, last);
  useEffect(() => onSeen?.(shown, last >= items.length - BEYOND), [first, last, items]);
  const gap = (rows) => (rows > 0 ? html`<tr class="gap" aria-hidden="true" style=${{ height: `${rows * height}px` }}><td colspan=${columns.length}></td></tr>` : null);
  return html`<div class="scroll" ref=${box} onScroll=${measure} tabindex="0" role="region" aria-label=${label}>
    <table class="rows" aria-rowcount=${items.length + 1} style=${{ "--row": `${height}px` }}>
      <thead><tr aria-rowindex="1">${columns.map((column) => html`<th key=${column.name} scope="col" class=${column.className}>${column.name}</th>`)}</tr></thead>
      <tbody>
        ${gap(first)}
        ${shown.map((item, place) => html`<tr key=${keyOf(item)} aria-rowindex=${first + place + 2} class=${rowClass?.(item) ?? ""}>${row(item)}</tr>`)}
        ${gap(items.length - last)}
      </tbody>
    </table>
  </div>`;
}

// True on screens as narrow as a phone, where rows are shown as cards.
const narrow = matchMedia("(max-width: 47.99rem)");
export function useNarrow() {
  const [is, set] = useState(narrow.matches);
  useEffect(() => {
    const update = () => set(narrow.matches);
    narrow.addEventListener("change", update);
    return () => narrow.removeEventListener("change", update);
  }, []);
  return is;
}
