// Building blocks of every component: markup, hooks and observable cells.

import { Component, h, render } from "./vendor/preact.mjs";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { Component, h, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// Looks up a name from outside (URL, answer) in an object, ignoring inherited names such as "toString".
export const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

// A value that notifies its watchers of changes.
export function cell(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    update(change) {
      this.set(change(value));
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useCell(source) {
  const [value, set] = useState(source.get());
  useEffect(() => {
    set(() => source.get());
    return source.watch((next) => set(() => next));
  }, [source]);
  return value;
}

// A component that redraws only if a property changed, so that long lists stay cheap.
export function memo(draw) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const before = Object.keys(this.props);
      return before.length !== Object.keys(next).length || before.some((key) => !Object.is(this.props[key], next[key]));
    }

    render(props) {
      return draw(props);
    }
  };
}

// Draws its children; if that fails, draws ``instead`` with the error and a retry function.
export class Boundary extends Component {
  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    console.error(error);
  }

  render({ children, instead }, { error }) {
    return error ? instead(error, () => this.setState({ error: null })) : children;
  }
}

// Runs the work soon, at most once per ``every`` milliseconds, and never twice at the same time.
// A request during a run starts another run after it.
export function coalesced(work, every) {
  let timer = null, running = false, wanted = false, last = -Infinity;
  async function run() {
    timer = null;
    running = true;
    wanted = false;
    last = performance.now();
    try {
      await work();
    } finally {
      running = false;
      if (wanted) ask();
    }
  }
  function ask() {
    wanted = true;
    if (running || timer !== null) return;
    timer = setTimeout(run, Math.max(0, last + every - performance.now()));
  }
  ask.cancel = () => {
    clearTimeout(timer);
    timer = null;
    wanted = false;
  };
  return ask;
}

// The time in seconds, updated every second while a component uses it.
const second = cell(Date.now());
let watching = 0, ticking = null;
export function useNow() {
  useEffect(() => {
    watching += 1;
    ticking ??= setInterval(() => second.set(Date.now()), 1000);
    return () => {
      watching -= 1;
      if (watching === 0) {
        clearInterval(ticking);
        ticking = null;
      }
    };
  }, []);
  return useCell(second) / 1000 + skew.get();
}

// Seconds by which the platform's clock is ahead of the browser's.
export const skew = cell(0);
export const now = () => Date.now() / 1000 + skew.get();
