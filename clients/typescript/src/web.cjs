"use strict";
// What the middleware of both frameworks shares.
const { StintError, response } = require("./index.cjs");

const degraded = "x-ratelimit-degraded"; // a client that sends it is not believed

const unavailable = {
  status: 503,
  headers: { "Content-Type": "application/problem+json", "Cache-Control": "no-store", "Retry-After": "1" },
  body: '{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary reduced capacity","status":503,"detail":"the rate limiter could not decide"}\n',
};

/** The attributes that every request has. The path is cleaned, so that /api//login does not get around a limit of /api/login. */
function describe(ip, method, url, host) {
  let path = url.split(/[?#]/, 1)[0];
  try {
    path = decodeURIComponent(path);
  } catch {
    // As it was sent.
  }
  if (/\/\/|\/\./.test(path)) {
    const parts = [];
    for (const part of path.split("/")) {
      if (part === "..") parts.pop();
      else if (part !== "" && part !== ".") parts.push(part);
    }
    path = `/${parts.join("/")}${parts.length && /\/\.{0,2}$/.test(path) ? "/" : ""}`;
  }
  return { method, path, ...(ip && { ip }), ...(host && { host: host.replace(/:\d+$/, "").toLowerCase() }) };
}

function checked({ attributes, onError = "reject" } = {}) {
  if (onError !== "reject" && onError !== "allow") throw new TypeError(`onError is ${JSON.stringify(onError)}, want "reject" or "allow"`);
  return { attributes, onError };
}

/**
 * Takes for a request, whose header fields are changed for the handler. Returns what to answer it, or null if it may go on;
 * raw is the answer of node:http, whose end gives a permit back.
 */
async function admit(client, { attributes, onError }, request, described, headers, raw) {
  const gone = new AbortController();
  raw.once("close", () => gone.abort());
  let decision, asked;
  try {
    asked = { ...described, ...(await attributes?.(request)) };
    decision = await client.take(asked, { signal: gone.signal });
  } catch (err) {
    if (gone.signal.aborted) return unavailable; // nobody reads it
    if (!(err instanceof StintError)) throw err;
    return onError === "allow" ? null : unavailable;
  }
  if (decision.permit !== null) {
    const finish = () => client.finish(asked, decision.permit).catch(() => {}); // it ends by itself
    if (raw.closed || raw.destroyed) finish();
    else raw.once("close", finish);
  }
  const answer = response(decision);
  if (!decision.allowed) return answer;
  if (decision.delay > 0) await new Promise((resolve) => setTimeout(resolve, decision.delay * 1000));
  for (const [name, value] of Object.entries(answer.headers)) raw.setHeader(name, value);
  delete headers[degraded];
  for (const [name, value] of Object.entries(decision.tags)) headers[name.toLowerCase()] = value;
  return null;
}

module.exports = { admit, checked, describe };
