// HTTP requests to the platform: JSON bodies, problems as errors, and detection of a lost session.

import { cell, own, skew } from "./ui.js";

const BASE = "api/v1/";
export const who = cell(undefined); // undefined: unknown; null: logged out; else role, tenant, version

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || "unexpected answer of the platform");
    this.status = status;
    this.code = body.code || "unknown";
    this.fix = body.fix;
    this.field = body.field;
  }
}

export function address(path, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(known).toString();
  return BASE + path + (text ? `?${text}` : "");
}

export async function request(path, { method = "GET", query, body, headers = {}, signal } = {}) {
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal,
      credentials: "same-origin",
      redirect: "error",
      headers: { Accept: "application/json", "X-Fairlead-Page": "1", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "unreachable", detail: "the platform cannot be reached", fix: "retrying" });
  }
  readClock(response);
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? null : response.json();
}

export async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    body = { detail: `the platform answered with ${response.status}` };
  }
  if (response.status === 401 && who.get()) who.set(null);
  return new Problem(response.status, body);
}

// The Date header has whole seconds, so differences below two seconds count as none.
function readClock(response) {
  const told = Date.parse(response.headers.get("Date") || "");
  const ahead = (told + 500 - Date.now()) / 1000;
  if (Number.isFinite(ahead)) skew.set(Math.abs(ahead) < 2 ? 0 : Math.round(ahead));
}

export async function askWho() {
  try {
    who.set(await request("session"));
  } catch (error) {
    if (error.status !== 401) throw error;
    who.set(null);
  }
}

export async function logIn(token) {
  who.set(await request("session", { method: "POST", body: { token } }));
}

export async function logOut() {
  try {
    await request("session", { method: "DELETE" });
  } finally {
    who.set(null);
  }
}

const RANK = { viewer: 0, member: 1, "tenant-admin": 2, admin: 3 };
export const may = (role) => (own(RANK, who.get()?.role) ?? -1) >= RANK[role];
export const jobPath = (id, rest = "") => `jobs/${encodeURIComponent(id)}${rest}`;
