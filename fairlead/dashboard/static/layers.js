// Lays out a pipeline's graph: layers by dependency depth, stages close to their inputs.

export const HEIGHT = 50;
const GAP_X = 36, GAP_Y = 16, EDGE = 6;
const LEAST_WIDTH = 128, LETTER = 7.7, AROUND = 46;  // wide enough for every name

// Map of name -> length of the longest path from a stage without inputs.
export function depths(stages) {
  const by = new Map(stages.map((stage) => [stage.name, stage]));
  const found = new Map();
  const depth = (name) => {
    if (!found.has(name)) {
      found.set(name, 0);
      const before = by.get(name).upstream.filter((other) => by.has(other)).map(depth);
      found.set(name, before.length ? 1 + Math.max(...before) : 0);
    }
    return found.get(name);
  };
  stages.forEach((stage) => depth(stage.name));
  return found;
}

// Position of every stage, points of every edge, and the size of the drawing.
export function layout(stages) {
  const depth = depths(stages);
  const layers = fill(stages, depth);
  const row = inOrder(layers);
  const widths = layers.map((layer) => Math.round(Math.max(LEAST_WIDTH, ...layer.filter(({ stage }) => stage).map(({ stage }) => AROUND + LETTER * stage.name.length))));
  const left = widths.map((_, at) => EDGE + widths.slice(0, at).reduce((sum, wide) => sum + wide + GAP_X, 0));
  const most = Math.max(...layers.map((layer) => layer.length));
  const top = (key) => (row.get(key) + (most - 1) / 2) * (HEIGHT + GAP_Y) + EDGE;
  const middle = (key) => top(key) + HEIGHT / 2;
  const boxes = stages.map((stage) => ({ stage, x: left[depth.get(stage.name)], y: top(stage.name), wide: widths[depth.get(stage.name)] }));
  const edges = stages.flatMap((stage) => stage.upstream.filter((name) => depth.has(name)).map((name) => {
    const from = depth.get(name), to = depth.get(stage.name);
    const points = [[left[from] + widths[from], middle(name)]];
    for (let layer = from + 1; layer < to; layer += 1) {
      const y = middle(passing(name, layer));
      points.push([left[layer], y], [left[layer] + widths[layer], y]);
    }
    points.push([left[to], middle(stage.name)]);
    return { key: `${name} ${stage.name}`, points, stage };
  }));
  const width = left.at(-1) + widths.at(-1) + EDGE;
  return { boxes, edges, width, height: most * (HEIGHT + GAP_Y) - GAP_Y + 2 * EDGE };
}

const passing = (name, layer) => `${name} in ${layer}`;  // stage names contain no spaces

// Stages by layer, with a placeholder where an edge crosses a layer, so that no edge runs behind a box.
function fill(stages, depth) {
  const layers = [];
  const put = (layer, key, upstream, stage) => {
    const there = (layers[layer] ??= new Map());
    if (!there.has(key)) there.set(key, { key, upstream, stage });
  };
  for (const stage of stages) {
    const own = depth.get(stage.name);
    put(own, stage.name, stage.upstream.filter((name) => depth.has(name)).map((name) => {
      const from = depth.get(name);
      for (let layer = from + 1; layer < own; layer += 1) put(layer, passing(name, layer), [layer === from + 1 ? name : passing(name, layer - 1)]);
      return own === from + 1 ? name : passing(name, own - 1);
    }), stage);
  }
  return layers.map((layer) => [...layer.values()]);
}

// Map of key -> row, counted from the middle; stages with the same inputs are adjacent.
function inOrder(layers) {
  const row = new Map();
  for (const layer of layers) {
    const middle = ({ upstream }) => {
      const known = upstream.filter((key) => row.has(key)).map((key) => row.get(key));
      return known.length ? known.reduce((sum, at) => sum + at, 0) / known.length : 0;
    };
    layer.sort((one, other) => middle(one) - middle(other) || one.key.localeCompare(other.key));
    layer.forEach(({ key }, place) => row.set(key, place - (layer.length - 1) / 2));
  }
  return row;
}
