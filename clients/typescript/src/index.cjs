/**
 * A thin client of stint's HTTP API, on fetch alone. Its types are in index.d.ts.
 *
 * It asks, and does not decide: each call is one request to the service. A refusal is an answer, a
 * decision whose `allowed` is false; only what is no answer is thrown, as a StintError. Leases, by which
 * a process decides without asking, are not in it.
 */

export class StintError extends Error {
  constructor(message, status = 0, hint = "", cause = undefined) {
    super(`stint: ${message}${hint && `; ${hint}`}`, cause && { cause });
    this.name = "StintError";
    this.status = status;
    this.hint = hint;
  }
}

export class Refused extends StintError {
  constructor(decision, message) {
    super(message, decision.status, "look at its decision, or ask explain why");
    this.name = "Refused";
    this.decision = decision;
  }
}

export class Reservation {
  #client;

  constructor(client, decision, raw) {
    this.#client = client;
    this.decision = decision;
    this.used = 0;
    this.#read(decision.allowed ? raw : { id: "", state: "", reserved: 0, ends: "" });
  }

  renew(used, { ttl } = {}) {
    this.used = Math.max(this.used, used); // also where the call fails: it was used
    return this.#settle("/v1/renew", { used, ttl: seconds(ttl) });
  }

  commit(actual) {
    return this.#settle("/v1/commit", { actual });
  }

  release() {
    return this.#settle("/v1/release", {});
  }

  async #settle(path, body) {
    if (!this.id) throw new Refused(this.decision, "the reservation was refused, so there is nothing to settle");
    return this.#read((await this.#client._call("POST", path, JSON.stringify({ id: this.id, ...body }))).raw);
  }

  #read(raw) {
    this.raw = raw;
    this.id = raw.id;
    this.state = raw.state;
    this.reserved = raw.reserved;
    this.ends = raw.ends;
    return this;
  }
}

export class Client {
  #base;
  #headers;
  #timeout;
  #fetch;

  constructor(baseURL, { token, timeout = 10, fetch = globalThis.fetch } = {}) {
    const url = tryURL(baseURL);
    if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash) {
      throw new TypeError(`baseURL is ${JSON.stringify(baseURL)}, want one such as http://127.0.0.1:8080`);
    }
    this.#base = url.href.replace(/\/+$/, "");
    this.#headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    this.#timeout = timeout;
    this.#fetch = fetch;
  }

  async take(attributes, { cost = 1, countRefused = false, signal } = {}) {
    const body = { attributes, cost, ...(countRefused && { count_refused: true }) };
    return (await this.#decide("/v1/take", body, signal, Math.min(longestHold, this.#timeout / 2))).decision;
  }

  async wait(attributes, { cost = 1, timeout = Infinity, signal, sleep = pause } = {}) {
    const end = performance.now() + timeout * 1000;
    for (let refused = 0; ; refused++) {
      // Newcomers join shorter lines only, so that nobody who was refused finds every line full.
      const hold = Math.max(0, Math.min(refused ? longestHold : longestHold / 2, (end - performance.now()) / 1000));
      const body = { attributes, cost, queue: true };
      const d = (await this.#decide("/v1/take", body, signal, hold, this.#timeout + hold)).decision;
      if (d.allowed) {
        if (d.delay > 0) await sleep(d.delay, signal);
        return d;
      }
      if (d.retryAfter === null) throw new Refused(d, `refused, and no wait helps: ${d.detail}`);
      if (performance.now() + d.retryAfter * 1000 > end) {
        throw new Refused(d, `refused, and the wait of ${d.retryAfter} s is longer than the timeout: ${d.detail}`);
      }
      // From the second time on others ask at the same moment.
      const jitter = refused ? Math.random() * Math.min(d.retryAfter / 10, 0.1) : 0;
      await sleep(Math.max(d.retryAfter + jitter, 0.001), signal);
    }
  }

  async finish(attributes, permit) {
    await this._call("POST", "/v1/finish", JSON.stringify({ attributes, permit }));
  }

  async explain(attributes, { cost = 1, signal } = {}) {
    return (await this._call("POST", "/v1/explain", JSON.stringify({ attributes, cost }), signal)).raw;
  }

  async reserve(attributes, { cost, ttl, declared, chargeExpired, signal } = {}) {
    const body = { attributes, cost, declared, ttl: seconds(ttl), charge_expired: chargeExpired };
    const { decision, raw } = await this.#decide("/v1/reserve", body, signal);
    return new Reservation(this, decision, raw);
  }

  async reserving(attributes, options, body) {
    const r = await this.reserve(attributes, options);
    if (!r.decision.allowed) throw new Refused(r.decision, `refused: ${r.decision.detail}`);
    const settle = async () => r.state === "open" && (r.used ? r.commit(r.used) : r.release());
    let result;
    try {
      result = await body(r);
    } catch (err) {
      // The error of the body is the one to see. A reservation that is not settled ends by itself.
      await settle().catch(() => {});
      throw err;
    }
    await settle();
    return result;
  }

  async usage(query = {}, { signal } = {}) {
    const q = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const one of [value].flat()) if (one !== undefined) q.append(name, one);
    }
    return (await this._call("GET", `/v1/usage?${q}`, undefined, signal)).raw.usage;
  }

  async #decide(path, body, signal, hold = 0, timeout = this.#timeout) {
    const { status, raw, headers } = await this._call("POST", path, JSON.stringify(body), signal, { Prefer: `wait=${hold.toFixed(3)}` }, timeout);
    const results = (raw.limits ?? []).map(result);
    const warnings = results.filter((r) => r.raw.soft && !r.raw.shadow).map((r) => r.name);
    if (raw["violated-policies"]) {
      const decision = {
        allowed: false,
        results,
        retryAfter: raw.retry_after ?? null,
        delay: 0,
        permit: null,
        tags: {},
        violated: raw["violated-policies"],
        reason: raw.reason ?? "",
        detail: raw.detail ?? "",
        status: Number(headers.get("X-Stint-Status") ?? status),
        location: headers.get("X-Stint-Location") ?? "",
        warnings,
        headers: pairs(raw.action?.header),
        body: raw.action?.body ?? null,
        contentType: raw.action?.content_type ?? "",
      };
      return { decision, raw };
    }
    if (raw.allowed !== true && !raw.id) {
      throw new StintError(`POST ${path} was answered with ${status} without a decision`, status, "is baseURL that of stint serve?");
    }
    const decision = {
      allowed: true,
      results,
      retryAfter: 0,
      delay: raw.delay ?? 0,
      permit: raw.permit ?? null,
      tags: pairs(raw.tags),
      violated: [],
      reason: "",
      detail: "",
      status: 200,
      location: "",
      warnings,
      headers: {},
      body: null,
      contentType: "",
    };
    return { decision, raw };
  }

  /** One request, never sent twice. An answer that is neither a success nor a refusal is thrown. */
  async _call(method, path, body, signal, headers = {}, timeout = this.#timeout) {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), timeout * 1000);
    const stop = () => late.abort();
    signal?.addEventListener("abort", stop, { once: true });
    let response, text;
    try {
      signal?.throwIfAborted();
      response = await this.#fetch(this.#base + path, { method, body, headers: { ...this.#headers, ...headers }, redirect: "manual", signal: late.signal });
      text = await response.text();
    } catch (err) {
      signal?.throwIfAborted();
      const why = late.signal.aborted ? `nothing within ${timeout} s` : (err.cause?.message ?? err.message);
      throw new StintError(`no answer: ${why}`, 0, `is stint serve running at ${this.#base}, and is timeout (${this.#timeout} s) long enough?`, err);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
    const raw = text ? tryJSON(text) : {};
    const known = typeof raw === "object" && raw !== null && !Array.isArray(raw);
    if (known && (response.ok || raw["violated-policies"])) return { status: response.status, raw, headers: response.headers };
    const detail = (known && raw.detail) || "no text of stint";
    const hint = hints[response.status] ?? "see docs/reference/http-api.md";
    throw new StintError(`${method} ${path} was answered with ${response.status}: ${detail}`, response.status, hint);
  }
}

const result = (r) => ({
  name: r.name,
  allowed: r.allowed,
  quota: r.quota,
  remaining: r.remaining,
  retryAfter: r.retry_after,
  resetAfter: r.reset_after,
  raw: r,
});

const pairs = (list) => Object.fromEntries((list ?? []).map((p) => [p.name, p.value]));

const longestHold = 5; // seconds for which the service holds an answer back

const seconds = (s) => (s === undefined ? undefined : `${s}s`);

function tryURL(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

function tryJSON(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Sleeps for seconds, in pieces, since a timer holds 24 days at most. */
async function pause(s, signal) {
  for (let left = s * 1000; left > 0; left -= 2 ** 31 - 1) {
    await new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const stop = () => {
        clearTimeout(timer);
        reject(signal.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", stop);
        resolve();
      }, Math.min(left, 2 ** 31 - 1));
      signal?.addEventListener("abort", stop, { once: true });
    });
  }
}

const hints = {
  400: "the request has a fault, do not repeat it as it is",
  401: "give Client a token of an identity in the file of --auth",
  403: "the identity of the token needs the role take",
  404: "is baseURL the HTTP port of stint serve, and the id of a reservation right?",
  409: "an earlier call said something else: keep what it said",
  421: "use an IP address, or allow the name with --http-host",
  503: "ask again, and decide meanwhile whether requests go on without a decision",
};
