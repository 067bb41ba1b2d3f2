// The login view: exchanges a token for a session cookie.

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
      <p class="dim">Use a token of this platform. It opens a session of at most twelve hours and is not stored in the browser.</p>
      <label for="token">Token</label>
      <input
        id="token" ref=${field} type="password" autocomplete="current-password" spellcheck=${false} required
        placeholder="fl_…" value=${token} onInput=${(event) => setToken(event.target.value)}
        aria-invalid=${problem ? "true" : undefined} aria-describedby=${problem ? "login-problem" : "login-help"}
      />
      ${problem
        ? html`<p class="wrong" id="login-problem" role="alert"><${Shape} of="failed" />${errorText(problem)}</p>`
        : html`<p class="hint" id="login-help">No token? Run <code>fairlead token create</code> or ask the platform's admin.</p>`}
      <button class="button primary" disabled=${busy || !token}>${busy ? "Logging in …" : "Log in"}</button>
    </form>
  </main>`;
}

function errorText(problem) {
  if (problem.status === 401) return "Invalid token: unknown, expired or revoked.";
  if (problem.status === 429) return `${problem.message}; ${problem.fix}`;
  return problem.message;
}
