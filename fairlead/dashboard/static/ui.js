// What every part of the page is made of: markup, hooks, and cells that parts can watch.

import { Component, h, render } from "./vendor/preact.mjs";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { Component, h, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// What a table of ours has under a name from elsewhere (an address, an answer): "__proto__" and "toString" are in none.
export const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

// A value that tells its watchers when it is another one.
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

// A part that is drawn again only when one of its properties is another one: lists stay cheap.
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

// Draws what stands in it, or, when that fails, what ``instead`` makes of the error and a way to try again.
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

// Runs the work soon, and again at most once in so many milliseconds, however often it is asked for.
// While it is under way nothing else of it starts; what is asked for meanwhile comes after.
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

// A second hand that stands still while nobody looks at it.
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

// Seconds by which the platform's clock is ahead of this one.
export const skew = cell(0);
export const now = () => Date.now() / 1000 + skew.get();
