// A chart that follows the size of its box, the theme and its data.

import * as format from "./format.js";
import { theme, colour } from "./theme.js";
import { html, useCell, useEffect, useRef } from "./ui.js";
import uPlot from "./vendor/uPlot.esm.js";

// `series`: [{ label, colour, value, ... }]; `data`: uPlot's columns; `words`: description for screen readers.
export function Chart({ series, data, words, x, y, height = 220, hooks, bands, scales }) {
  const box = useRef(null), plot = useRef(null), present = useCell(theme);
  const shape = JSON.stringify([present, height, series.map((each) => [each.label, each.colour, each.stepped, each.dash])]);
  useEffect(() => {
    const size = () => ({ width: Math.max(160, box.current.clientWidth), height });
    const made = new uPlot(options({ ...size(), series, x, y, hooks, bands, scales }), data, box.current);
    plot.current = made;
    const watcher = new ResizeObserver(() => box.current && made.setSize(size()));
    watcher.observe(box.current);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="chart" ref=${box} role="img" aria-label=${words}></div>`;
}

const clock = (plot, ticks) => ticks.map((tick) => (tick == null ? "" : format.time(tick)));

function options({ width, height, series, x, y, hooks, bands, scales }) {
  const ink = colour("--ink-dim"), grid = colour("--line");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, gap: 6 };
  return {
    width, height, hooks, bands,
    legend: { live: true, markers: { dash: (plot, index) => (plot.series[index].dash ? "dashed" : "solid") } },
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    scales: { x: { time: Boolean(x?.time) }, ...scales },
    axes: [{ ...axis, size: 30, ...(x?.time ? { values: clock, space: 72 } : {}) },
      { ...axis, size: 52, ...(y?.values ? { values: y.values } : {}) }],
    series: [
      { label: x?.label ?? "", value: x?.value },
      ...series.map((each) => {
        const line = colour(each.colour);
        return {
          label: each.label, stroke: line, width: each.width ?? 1.75, dash: each.dash, spanGaps: each.spanGaps ?? false,
          points: { show: each.points ?? false }, value: each.value,
          fill: each.fill ? line.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)") : undefined,
          paths: each.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        };
      }),
    ],
  };
}
