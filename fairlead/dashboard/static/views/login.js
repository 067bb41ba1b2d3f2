// Logging in: a token for a cookie.

import { logIn } from "../api.js";
import { Shape } from "../parts.js";
import { html, useEffect, useRef, useState } from "../ui.js";

export function LoginView({ brand, theme }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  useEffect(() => {
    document.title = "Log in · Fairlead";
    field.current.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await logIn(token);
    } catch (error) {
      setProblem(error);
      setBusy(false);
      field.current.focus();
      field.current.select();
    }
  };
  return html`<main class="alone">
    <form class="login" onSubmit=${submit}>
      <div class="top">${brand}${theme}</div>
      <h1>Log in</h1>
      <p class="dim">With a token of this platform. It is exchanged for a session of twelve hours and not kept here.</p>
      <label for="token">Token</label>
      <input
        id="token" ref=${field} type="password" autocomplete="current-password" spellcheck=${false} required
        placeholder="fl_…" value=${token} onInput=${(event) => setToken(event.target.value)}
        aria-invalid=${problem ? "true" : undefined} aria-describedby=${problem ? "login-problem" : "login-help"}
      />
      ${problem
        ? html`<p class="wrong" id="login-problem" role="alert"><${Shape} of="failed" />${words(problem)}</p>`
        : html`<p class="hint" id="login-help">No token? <code>fairlead token create</code>, or ask who runs the platform.</p>`}
      <button class="button primary" disabled=${busy || !token}>${busy ? "Logging in …" : "Log in"}</button>
    </form>
  </main>`;
}

function words(problem) {
  if (problem.status === 401) return "That token opens nothing here: it is unknown, expired or revoked.";
  if (problem.status === 429) return `${problem.message}; ${problem.fix}`;
  return problem.message;
}
