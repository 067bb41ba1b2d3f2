// Where the stages of a pipeline stand: in layers by what they wait for, and within a layer near what they take.

export const WIDTH = 172, HEIGHT = 54, GAP_X = 64, GAP_Y = 22;

// By name: the longest way to it from a stage that waits for nothing.
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

// Every stage with its place, every edge with its ends, and how large the whole is.
export function layout(stages) {
  const depth = depths(stages);
  const layers = [];
  for (const stage of stages) (layers[depth.get(stage.name)] ??= []).push(stage);
  const row = new Map();
  for (const layer of layers) {
    const middle = (stage) => {
      const known = stage.upstream.filter((name) => row.has(name)).map((name) => row.get(name));
      return known.length ? known.reduce((sum, at) => sum + at, 0) / known.length : 0;
    };
    layer.sort((left, right) => middle(left) - middle(right) || left.name.localeCompare(right.name));
    layer.forEach((stage, place) => row.set(stage.name, place - (layer.length - 1) / 2));
  }
  const most = Math.max(...layers.map((layer) => layer.length));
  const place = (name) => ({
    x: depth.get(name) * (WIDTH + GAP_X) + 8,
    y: (row.get(name) + (most - 1) / 2) * (HEIGHT + GAP_Y) + 8,
  });
  const boxes = stages.map((stage) => ({ stage, ...place(stage.name) }));
  const edges = stages.flatMap((stage) => stage.upstream.filter((name) => depth.has(name)).map((name) => {
    const from = place(name), to = place(stage.name);
    return { key: `${name} ${stage.name}`, from, to, stage };
  }));
  return { boxes, edges, width: layers.length * (WIDTH + GAP_X) - GAP_X + 16, height: most * (HEIGHT + GAP_Y) - GAP_Y + 16 };
}
