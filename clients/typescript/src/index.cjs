"use strict";
/**
 * A thin client of stint's HTTP API. Its types are in index.d.cts.
 *
 * It asks, and does not decide: each call is one request to the service. A refusal is an answer, a
 * decision whose `allowed` is false; only what is no answer is thrown, as a StintError. Leases, by which
 * a process decides without asking, are not in it.
 */

class StintError extends Error {
  constructor(message, status = 0, hint = "", cause = undefined) {
    super(`stint: ${message}${hint && `; ${hint}`}`, cause && { cause });
    this.name = "StintError";
    this.status = status;
    this.hint = hint;
  }
}

class Refused extends StintError {
  constructor(decision, message) {
    super(message, decision.status, "look at its decision, or ask explain why");
    this.name = "Refused";
    this.decision = decision;
  }
}

class Reservation {
  #client;

  constructor(client, decision, raw) {
    this.#client = client;
    this.decision = decision;
    this.used = 0;
    this.#read(decision.allowed ? raw : { id: "", state: "", reserved: 0, ends: "" });
  }

  renew(used, { ttl, signal } = {}) {
    this.used = Math.max(this.used, used); // also where the call fails: it was used
    return this.#settle("/v1/renew", { used, ttl: seconds(ttl) }, signal);
  }

  commit(actual, { signal } = {}) {
    return this.#settle("/v1/commit", { actual }, signal);
  }

  release({ signal } = {}) {
    return this.#settle("/v1/release", {}, signal);
  }

  async #settle(path, body, signal) {
    if (!this.id) throw new Refused(this.decision, "the reservation was refused, so there is nothing to settle");
    return this.#read((await this.#client._call("POST", path, JSON.stringify({ id: this.id, ...body }), signal)).raw);
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

class Client {
  #name;
  #prefix;
  #token;
  #timeout;
  #send;
  #pool;
  #heads = new Map();

  constructor(baseURL, { token, timeout = 10, maxSockets = 100, fetch, tls } = {}) {
    const { url, socketPath } = address(String(baseURL));
    this.#name = socketPath ? `unix:${socketPath}` : url.origin;
    this.#prefix = url.pathname.replace(/\/+$/, "");
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) throw new TypeError("token has characters that a header field cannot have");
    this.#token = token;
    this.#timeout = timeout;
    fetch ??= socketPath || isNode ? undefined : globalThis.fetch;
    if (fetch) {
      if (socketPath) throw new TypeError("a unix socket is reached without fetch");
      this.#send = (...call) => this.#fetched(fetch, url.origin, ...call);
      return;
    }
    const secure = url.protocol === "https:";
    const host = url.hostname.replace(/^\[|\]$/g, "");
    this.#pool = new Pool(maxSockets, () => {
      if (socketPath) return require("node:net").connect({ path: socketPath });
      const to = { host, port: Number(url.port) || (secure ? 443 : 80) };
      if (!secure) return require("node:net").connect(to);
      return require("node:tls").connect({ ...to, ...(require("node:net").isIP(host) ? {} : { servername: host }), ...tls });
    });
    this.#send = (method, path, hold, key, body, ms, signal, again) => {
      let head = this.#heads.get(path);
      if (head === undefined) {
        head = `${method} ${this.#prefix}${path} HTTP/1.1\r\nHost: ${url.host}\r\nContent-Type: application/json\r\n${token ? `Authorization: Bearer ${token}\r\n` : ""}`;
        if (method === "POST") this.#heads.set(path, head);
      }
      const prefer = hold === undefined ? "" : `Prefer: wait=${hold.toFixed(3)}\r\n`;
      const named = key === undefined ? "" : `Idempotency-Key: ${key}\r\n`;
      const length = body === undefined ? "" : `Content-Length: ${Buffer.byteLength(body)}\r\n`;
      return this.#pool.call(`${head}${prefer}${named}${length}\r\n${body ?? ""}`, ms, signal, again);
    };
  }

  /** Closes the connections, those of calls when they end. The next call opens another one. */
  async close() {
    this.#pool?.close();
  }

  async take(attributes, { cost = 1, countRefused = false, idempotencyKey, signal } = {}) {
    const body = { attributes, cost, ...(countRefused && { count_refused: true }) };
    return (await this.#decide("/v1/take", body, signal, Math.min(longestHold, this.#timeout / 2), this.#timeout, checked(idempotencyKey))).decision;
  }

  async wait(attributes, { cost = 1, timeout = Infinity, idempotencyKey, signal, sleep = pause } = {}) {
    const key = checked(idempotencyKey);
    const end = performance.now() + timeout * 1000;
    for (let refused = 0; ; refused++) {
      // Newcomers join shorter lines only, so that nobody who was refused finds every line full.
      const hold = Math.max(0, Math.min(refused ? longestHold : longestHold / 2, (end - performance.now()) / 1000));
      const body = { attributes, cost, queue: true };
      const d = (await this.#decide("/v1/take", body, signal, hold, this.#timeout + hold, key)).decision;
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

  async finish(attributes, permit, { signal } = {}) {
    await this._call("POST", "/v1/finish", JSON.stringify({ attributes, permit }), signal);
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
    const { usage, incomplete = [] } = (await this._call("GET", `/v1/usage?${q}`, undefined, signal)).raw;
    return Object.assign(usage, { incomplete });
  }

  async #decide(path, body, signal, hold = 0, timeout = this.#timeout, key = undefined) {
    const { status, raw, get, fields } = await this._call("POST", path, JSON.stringify(body), signal, hold, timeout, key);
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
        status: Number(get("x-stint-status") ?? status),
        location: get("x-stint-location") ?? "",
        warnings,
        headers: pairs(raw.action?.header),
        body: raw.action?.body ?? null,
        contentType: raw.action?.content_type ?? "",
        repeated: raw.repeated ?? false,
      };
      answers.set(decision, { raw, fields });
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
      repeated: raw.repeated ?? false,
    };
    answers.set(decision, { raw, fields });
    return { decision, raw };
  }

  /**
   * One request, which is sent again only if it has a key and its connection broke, for as long as its timeout lasts. An answer that
   * is neither a success nor a refusal is thrown.
   */
  async _call(method, path, body, signal, hold, timeout = this.#timeout, key = undefined) {
    signal?.throwIfAborted();
    const begin = performance.now();
    let answer;
    for (let broken = 0, waited = 0; !answer; ) {
      try {
        const held = hold === undefined ? undefined : Math.max(0, hold - waited);
        answer = await this.#send(method, path, held, key, body, (timeout - waited) * 1000, signal, broken > 0);
      } catch (err) {
        if (err instanceof StintError) throw err;
        signal?.throwIfAborted();
        const sent = broken > 0 || err instanceof Broken;
        const again = broken++ ? (0.5 + Math.random() / 2) * Math.min(1, 0.01 * 2 ** broken) : 0;
        waited = (performance.now() - begin) / 1000 + again;
        if (key === undefined || !sent || err === late || waited >= timeout) {
          const cause = err instanceof Broken ? err.cause : err;
          const why = err === late ? `nothing within ${timeout} s` : (cause.cause?.message ?? cause.message);
          throw new StintError(`no answer: ${why}`, 0, `is stint serve running at ${this.#name}, and is timeout (${this.#timeout} s) long enough?`, cause);
        }
        await pause(again, signal);
        waited = (performance.now() - begin) / 1000;
      }
    }
    const { status, text, get, fields } = answer;
    const raw = text ? tryJSON(text) : {};
    const known = typeof raw === "object" && raw !== null && !Array.isArray(raw);
    if (known && (status < 300 || raw["violated-policies"])) return { status, raw, get, fields };
    const detail = (known && raw.detail) || "no text of stint";
    const hint = hints[status] ?? "see docs/reference/http-api.md";
    throw new StintError(`${method} ${path.split("?")[0]} was answered with ${status}: ${detail}`, status, hint);
  }

  async #fetched(fetch, origin, method, path, hold, key, body, ms, signal) {
    const stopping = new AbortController();
    const timer = setTimeout(() => stopping.abort(late), ms);
    const stop = () => stopping.abort(signal.reason);
    signal?.addEventListener("abort", stop, { once: true });
    try {
      const headers = { "Content-Type": "application/json", ...(this.#token && { Authorization: `Bearer ${this.#token}` }) };
      if (hold !== undefined) headers.Prefer = `wait=${hold.toFixed(3)}`;
      if (key !== undefined) headers["Idempotency-Key"] = key;
      const init = { method, headers, redirect: "manual", signal: stopping.signal, ...(body !== undefined && { body }) };
      const response = await fetch(origin + this.#prefix + path, init);
      const text = await response.text();
      return { status: response.status, text, get: (name) => response.headers.get(name), fields: () => [...response.headers] };
    } catch (err) {
      if (signal?.aborted) throw err;
      throw stopping.signal.aborted ? late : new Broken(err); // fetch does not say whether it was sent
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
  }
}

/** Says that an answer did not come in time. */
const late = new Error("timed out");

/** Says that a call may have been sent, and that its connection then broke for this cause. */
class Broken extends Error {
  constructor(cause) {
    super(cause.message, { cause });
  }
}

/** What was answered, for response. */
const answers = new WeakMap();

/** What to answer your own client: the status, header fields such as RateLimit and Retry-After, and the body of a refusal. */
function response(decision) {
  const { raw, fields } = answers.get(decision) ?? { raw: { status: decision.status, detail: decision.detail }, fields: () => [] };
  const headers = {};
  for (const [name, value] of fields()) if (/^(x-)?ratelimit|^retry-after$/i.test(name)) headers[name] = value;
  if (decision.allowed) return { status: 200, headers, body: "" };
  Object.assign(headers, decision.headers, decision.location && { Location: decision.location }, { "Cache-Control": "no-store" });
  if (decision.body !== null) return { status: decision.status, headers: { ...headers, "Content-Type": decision.contentType }, body: decision.body };
  const { limits, action, ...problem } = raw;
  return { status: decision.status, headers: { ...headers, "Content-Type": "application/problem+json" }, body: JSON.stringify(problem) };
}

const isNode = typeof process === "object" && Boolean(process.versions?.node) && !process.versions.bun && !globalThis.Deno;

/** The URL of the service, and the path of its socket, if it is a unix socket: unix:PATH or http+unix://PATH, with %2F for /. */
function address(text) {
  const [, path] = /^unix:(.+)$/s.exec(text) ?? [];
  if (path) return { url: new URL("http://localhost"), socketPath: path.startsWith("//") ? path.replace(/^\/+/, "/") : path };
  const [, encoded, rest] = /^http\+unix:\/\/([^/?#]+)(\/[^?#]*)?$/.exec(text) ?? [];
  if (encoded) return { url: new URL(rest ?? "/", "http://localhost"), socketPath: decodeURIComponent(encoded) };
  const url = tryURL(text);
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash) {
    throw new TypeError(`baseURL is ${JSON.stringify(text)}, want one such as http://127.0.0.1:8080 or unix:/run/stint.sock`);
  }
  return { url };
}

/** At most so many connections, each for one call at a time. The one used last is used first. */
class Pool {
  #max;
  #open;
  #free;
  #idle = [];
  #waiting = [];
  #closes = 0;

  constructor(max, open) {
    if (!(max >= 1)) throw new TypeError(`maxSockets is ${max}, want 1 or more`);
    this.#max = this.#free = max;
    this.#open = open;
  }

  /** Sends a request and returns its answer, over a new connection if it is one that is sent again. */
  call(request, ms, signal, again) {
    return new Promise((resolve, reject) => {
      const call = { request, again, connection: null, done: false };
      const end = (settle, value) => {
        if (call.done) return;
        call.done = true;
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        settle(value);
      };
      call.resolve = (answer) => end(resolve, answer);
      call.reject = (err) => {
        end(reject, err);
        call.connection?.drop();
      };
      const stop = () => call.reject(signal.reason);
      const used = () => new StintError(`all ${this.#max} connections are in use`, 0, "raise maxSockets above the number of calls at once, or call less");
      const timer = setTimeout(() => call.reject(call.connection ? late : used()), ms);
      signal?.addEventListener("abort", stop, { once: true });
      if (this.#free > 0) this.#begin(call);
      else this.#waiting.push(call);
    });
  }

  #begin(call) {
    this.#free--;
    let connection = this.#idle.pop();
    while (connection?.ended) connection = this.#idle.pop();
    if (call.again && connection) {
      connection.drop();
      connection = undefined;
    }
    if (!connection) {
      const closes = this.#closes;
      connection = new Connection(this.#open(), (kept) => {
        if (kept && closes === this.#closes) this.#idle.push(connection);
        else connection.drop();
        this.#free++;
        while (this.#waiting.length && this.#free > 0) {
          const next = this.#waiting.shift();
          if (!next.done) this.#begin(next);
        }
      });
    }
    call.connection = connection;
    connection.ask(call);
  }

  close() {
    this.#closes++;
    for (const connection of this.#idle.splice(0)) connection.drop();
  }
}

/** A connection. left is called when its call has ended, with whether it can be used again. */
class Connection {
  #socket;
  #left;
  #call = null;
  #reader = new Reader();
  #open = false;
  ended = false;

  constructor(socket, left) {
    this.#socket = socket;
    this.#left = left;
    socket.setNoDelay(true);
    socket.on(socket.encrypted ? "secureConnect" : "connect", () => { this.#open = true; });
    socket.on("data", (data) => this.#read(data));
    socket.on("end", () => this.#end(null));
    socket.on("error", (err) => this.#end(err));
    socket.on("close", () => this.#end(null));
  }

  ask(call) {
    this.#call = call;
    this.#reader = new Reader();
    this.#socket.ref();
    this.#socket.write(call.request, "utf8");
  }

  #read(data) {
    if (!this.#call) return this.drop(); // nothing was asked
    let answer;
    try {
      answer = this.#reader.feed(data);
    } catch (err) {
      return this.#end(err, false); // it is not HTTP
    }
    if (answer) this.#done(answer);
  }

  #done(answer) {
    const call = this.#call;
    this.#call = null;
    if (answer.kept && !this.ended) this.#socket.unref(); // an idle connection does not keep the process
    this.#left(answer.kept && !this.ended);
    call.resolve(answer);
  }

  #end(err, broken = this.#open) {
    this.ended = true;
    const call = this.#call;
    if (call) {
      const answer = err ? null : this.#reader.end();
      if (answer) return this.#done(answer);
      this.#call = null;
      this.#left(false);
      err ??= new Error("the connection ended before the answer");
      call.reject(broken ? new Broken(err) : err);
    }
    this.#socket.destroy();
  }

  /** Ends the connection at once: the service then gives up a call that it holds in line. */
  drop() {
    this.ended = true;
    this.#socket.destroy();
    const call = this.#call;
    if (call) {
      this.#call = null;
      this.#left(false);
      call.reject(new Error("the connection was closed"));
    }
  }
}

/** Reads one answer from what a connection receives. */
class Reader {
  #data = null;
  #head = "";
  #status = 0;
  #missing = undefined; // bytes of the body; -1: chunks; undefined: up to the end
  #kept = true;
  #chunks = [];

  /** Returns the answer once it is whole. */
  feed(data) {
    data = this.#data ? Buffer.concat([this.#data, data]) : data;
    this.#data = data;
    while (!this.#head) {
      const end = data.indexOf("\r\n\r\n");
      if (end < 0) {
        if (data.length > 65536) throw new Error("the answer is not one of HTTP/1.1");
        return null;
      }
      const head = data.latin1Slice(0, end);
      const [, version, status] = /^HTTP\/1\.([01]) (\d{3})/.exec(head) ?? [];
      if (!status) throw new Error("the answer is not one of HTTP/1.1");
      this.#data = data = data.subarray(end + 4);
      if (status < "200") continue; // such as 103, before the answer
      this.#head = head;
      this.#status = Number(status);
      if (status === "204" || status === "304") this.#missing = 0;
      else if (/\r\ntransfer-encoding:/i.test(head)) this.#missing = -1;
      else {
        const [, length] = /\r\ncontent-length: *(\d+)/i.exec(head) ?? [];
        if (length !== undefined) this.#missing = Number(length);
      }
      this.#kept = version === "1" ? !/\r\nconnection:[^\r]*close/i.test(head) : /\r\nconnection:[^\r]*keep-alive/i.test(head);
    }
    if (this.#missing === undefined) return null;
    if (this.#missing < 0) return this.#chunked();
    if (data.length < this.#missing) return null;
    return this.#answer(data.utf8Slice(0, this.#missing), this.#kept && data.length === this.#missing);
  }

  /** Returns the answer that the end of the connection makes whole, or null. */
  end() {
    return this.#head && this.#missing === undefined ? this.#answer(this.#data.toString(), false) : null;
  }

  #chunked() {
    for (;;) {
      const line = this.#data.indexOf("\r\n");
      if (line < 0) return null;
      const size = Number.parseInt(this.#data.latin1Slice(0, line), 16);
      if (!(size >= 0)) throw new Error("the answer has a wrong chunk");
      if (size === 0) {
        const end = this.#data.indexOf("\r\n\r\n", line); // there may be trailers
        return end < 0 ? null : this.#answer(Buffer.concat(this.#chunks).toString(), this.#kept && this.#data.length === end + 4);
      }
      if (this.#data.length < line + size + 4) return null;
      this.#chunks.push(this.#data.subarray(line + 2, line + 2 + size));
      this.#data = this.#data.subarray(line + size + 4);
    }
  }

  #answer(text, kept) {
    const head = this.#head;
    const fields = () => head.split("\r\n").slice(1).map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]);
    return { status: this.#status, text, kept, fields, get: (name) => fields().find(([n]) => n.toLowerCase() === name)?.[1] ?? null };
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

/** Returns an idempotency key, if there is one, that a header field can have. */
function checked(key) {
  if (key !== undefined && !/^[!-~]([ -~]{0,254}[!-~])?$/.test(key)) {
    throw new TypeError(`idempotencyKey is ${JSON.stringify(key)}, want 1 to 256 printable ASCII characters without spaces around, such as a UUID`);
  }
  return key;
}

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

module.exports = { Client, Refused, Reservation, StintError, response };
