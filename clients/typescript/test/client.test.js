// The client against a real service: STINT_URL is one with ../limits.yaml, STINT_AUTH_URL one that asks for STINT_TOKEN.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { connect, createServer as createTCPServer } from "node:net";
import { json } from "node:stream/consumers";
import { test } from "node:test";
import * as stint from "stint-client";
import { Client, Refused, Reservation, StintError } from "stint-client";

const client = new Client(process.env.STINT_URL);
const run = `js${process.pid}`;
let users = 0;
const seed = Math.floor(Math.random() * 2 ** 32);
console.log("seed", seed);
/** A generator of numbers from 0 to 1 (mulberry32). */
const generator = (a) => () => {
  a = (a + 0x6d2b79f5) | 0;
  let t = Math.imul(a ^ (a >>> 15), 1 | a);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
};
const random = generator(seed);
const oneOf = (list) => list[Math.floor(random() * list.length)];
// Each test has counters of its own.
const request = (path, user = `${run}-${++users}`) => ({ user, path });

test("take", async () => {
  const two = request("/two");
  let d = await client.take(two);
  assert.deepEqual([d.allowed, d.retryAfter, d.delay, d.violated, d.status], [true, 0, 0, [], 200]);
  assert.equal(d.results.length, 1);
  const { name, allowed, quota, remaining, raw } = d.results[0];
  assert.deepEqual([name, allowed, quota, remaining, raw.window], ["two", true, 2, 1, 3600]);
  assert.ok((await client.take(two)).allowed);
  d = await client.take(two);
  assert.deepEqual([d.allowed, d.violated, d.reason, d.status, d.results.map((r) => [r.name, r.allowed])], [false, ["two"], "rate_exceeded", 403, [["two", false]]]);
  assert.ok(d.retryAfter > 0 && d.retryAfter <= 3600, String(d.retryAfter));
  assert.match(d.detail, /two/);
});

test("cost", async () => {
  const two = request("/two"), debt = request("/debt");
  assert.equal((await client.take(two, { cost: 0 })).results[0].remaining, 2);
  const d = await client.take(two, { cost: 3 });
  assert.deepEqual([d.allowed, d.reason, d.retryAfter], [false, "cost_exceeds_limit", null]);
  assert.equal((await client.take(debt, { cost: 5, countRefused: true })).allowed, false);
  assert.equal((await client.take(debt)).allowed, false, "it is in debt");
});

test("what the caller's own client is told", async () => {
  const tag = request("/tag"), away = request("/away");
  assert.deepEqual((await client.take(tag)).tags, {});
  assert.deepEqual((await client.take(tag)).tags, { "X-RateLimit-Degraded": "tag" });
  await client.take(away);
  const d = await client.take(away);
  assert.deepEqual([d.allowed, d.status, d.location], [false, 302, "https://example.com/busy"]);
  assert.deepEqual([d.body, d.headers, d.contentType], [null, {}, ""]);
  const own = request("/own");
  for (const [allowed, status, warnings] of [[true, 200, []], [true, 200, ["own"]]]) {
    const d = await client.take(own);
    assert.deepEqual([d.allowed, d.status, d.warnings], [allowed, status, warnings]);
  }
  const last = await client.take(own);
  assert.deepEqual([last.status, last.body, last.contentType, last.headers], [503, "<p>ü</p>", "text/html", { "X-Reason": "quota", "X-Kind": "own" }]);
});

test("a permit", async () => {
  const job = request("/job");
  const { permit } = await client.take(job);
  assert.ok(Number.isSafeInteger(permit));
  assert.equal((await client.take(job)).reason, "concurrency_exceeded");
  await client.finish(job, permit);
  assert.ok((await client.take(job)).allowed);
});

test("wait", async () => {
  const second = request("/second"), two = request("/two");
  await client.take(second);
  const sleep = () => assert.fail("it slept");
  assert.ok((await client.wait(second, { sleep })).allowed, "the service holds it in line");
  const impatient = new Client(process.env.STINT_URL, { timeout: 0.3 });
  assert.ok((await impatient.wait(second, { sleep })).allowed, "also for longer than the timeout");
  const slept = [], hundred = request("/hundred");
  const old = new Client(process.env.STINT_URL, { // a service that knows no line
    fetch: (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), queue: false }) }),
  });
  while (!slept.length) await old.wait(hundred, { sleep: async (s) => slept.push(s) });
  assert.ok(slept[0] > 0 && slept[0] < 0.01, `${slept}: not the exact retryAfter`);
  const line = request("/line"), hasty = new Client(process.env.STINT_URL, { timeout: 4 }); // the queue is longer than that allows
  const answers = await Promise.all(Array.from({ length: 80 }, () => hasty.take(line)));
  assert.deepEqual([...new Set(answers.map((d) => d.reason))].sort(), ["", "rate_exceeded"]);
  await client.take(two, { cost: 2 });
  await assert.rejects(client.wait(two, { timeout: 1, sleep }), (err) => err instanceof Refused && err.status === 403 && err.decision.violated[0] === "two");
  await assert.rejects(client.wait(two, { cost: 3, sleep }), /no wait helps/);
  const stop = new AbortController();
  const waiting = client.wait(two, { signal: stop.signal });
  setTimeout(() => stop.abort(new Error("the caller has gone")), 50);
  await assert.rejects(waiting, /the caller has gone/);
  await assert.rejects(client.take(two, { signal: stop.signal }), /the caller has gone/);
});

test("delay", async () => {
  const leaky = request("/leaky"), slept = [];
  let d;
  for (let i = 0; i < 2; i++) d = await client.wait(leaky, { sleep: async (s) => slept.push(s) });
  assert.deepEqual(slept, [d.delay], "the second is held back");
});

const left = async (tokens) => (await client.take(tokens, { cost: 0 })).results[0].remaining;

test("reserve", async () => {
  const tokens = request("/tokens");
  const r = await client.reserve(tokens, { cost: 800, ttl: 60, chargeExpired: true });
  assert.ok(r instanceof Reservation && r.decision.allowed);
  assert.deepEqual([r.reserved, r.state, r.decision.results[0].remaining, await left(tokens)], [800, "open", 200, 200]);
  assert.equal((await r.renew(100, { ttl: 30 })).raw.used, 100);
  assert.equal((await r.renew(150)).raw.used, 150);
  const refused = await client.reserve(tokens, { cost: 300 });
  assert.deepEqual([refused.decision.allowed, refused.id, refused.decision.violated], [false, "", ["tokens"]]);
  for (const settle of [() => refused.release(), () => refused.commit(1), () => refused.renew(1)]) await assert.rejects(settle, Refused);
  for (let i = 0; i < 2; i++) assert.equal((await r.commit(300)).state, "committed");
  assert.deepEqual([await left(tokens), r.raw.actual], [700, 300]);
  await assert.rejects(r.commit(301), (err) => err instanceof StintError && err.status === 409 && /an earlier call/.test(err.message));
  assert.equal((await (await client.reserve(tokens, { cost: 700 })).release()).state, "released");
  assert.equal(await left(tokens), 700);
  const estimated = await client.reserve({ ...request("/tokens"), model: "new" }, { declared: 500 });
  assert.deepEqual([estimated.reserved, estimated.raw.estimate.declared], [100, 500]);
});

test("reserving", async () => {
  const tokens = request("/tokens");
  assert.equal(await client.reserving(tokens, { cost: 800 }, async (r) => (await r.commit(200)).state), "committed");
  assert.equal(await left(tokens), 800);
  assert.equal(await client.reserving(tokens, { cost: 700 }, () => left(tokens)), 100);
  assert.equal(await left(tokens), 800, "what was not committed comes back");
  await assert.rejects(client.reserving(tokens, { cost: 700 }, () => { throw new RangeError("mine"); }), RangeError);
  assert.equal(await left(tokens), 800);
  await assert.rejects(client.reserving(tokens, { cost: 900 }, () => assert.fail("it was refused")), Refused);
  for (let i = 0; i < 20; i++) {
    const tokens = request("/tokens");
    const reports = Array.from({ length: Math.floor(random() * 4) }, () => 1 + Math.floor(random() * 900)); // late ones as well: less than was reported
    const end = oneOf(["return", "throw", "commit", "release"]);
    let want = 0;
    const reserving = client.reserving(tokens, { cost: 10 }, async (r) => {
      for (const used of reports) {
        await r.renew(used);
        assert.equal(r.used, (want = Math.max(want, used)));
      }
      if (end === "throw") throw new RangeError("mine");
      if (end === "commit") await r.commit((want = 7));
      if (end === "release") await r.release((want = 0));
    });
    await (end === "throw" ? assert.rejects(reserving, RangeError) : reserving);
    assert.equal(1000 - (await left(tokens)), want, `${reports}, then ${end}: the most that was reported is charged`);
  }
});

test("explain and usage", async () => {
  const two = request("/two");
  await client.take(two);
  const x = await client.explain(two, { cost: 2 });
  assert.deepEqual([x.allowed, x.limits[0].used], [false, 1]);
  const rows = await client.usage({ key: [`user=${two.user}`], limit: "two", by: "total", from: "2020-01" });
  assert.deepEqual([rows.map((row) => [row.limit, row.used]), rows.incomplete], [[["two", 1]], []]);
});

test("faults", async () => {
  const auth = process.env.STINT_AUTH_URL;
  for (const [call, status, hint] of [
    [() => client.take({ "": "x" }), 400, /has a fault/],
    [() => client.usage({ by: "week" }), 400, /has a fault/],
    [() => new Client(`${process.env.STINT_URL}/nowhere`).take({}), 404, /HTTP port/],
    [() => new Client("http://127.0.0.1:2").take({}), 0, /is stint serve running/],
    [() => new Client(auth).take({}), 401, /--auth/],
    [() => new Client(auth, { token: "wrong-token-of-20-bytes" }).take({}), 401, /--auth/],
  ]) {
    await assert.rejects(call, (err) => {
      assert.ok(err instanceof StintError && !(err instanceof Refused), String(err));
      assert.equal(err.status, status, err.message);
      assert.match(err.hint, hint);
      return true;
    });
  }
  for (const url of ["127.0.0.1:8080", "ftp://x", "http://", "http://x?y"]) assert.throws(() => new Client(url), TypeError, url);
  assert.ok((await new Client(`${auth}/`, { token: process.env.STINT_TOKEN }).take({ user: "x" })).allowed);
});

test("a server that is not stint", async () => {
  let status, body, asked;
  const server = createServer(async (req, res) => {
    asked = req.method === "POST" && (await json(req));
    if (status === 0) return; // never an answer
    res.writeHead(status, { Location: "/elsewhere" });
    res.end(body);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const url = `http://127.0.0.1:${server.address().port}`;
  const odd = new Client(url, { timeout: 60 }), impatient = new Client(url, { timeout: 0.3 });
  try {
    for ([status, body] of [[429, "<html>"], [502, ""], [200, "<html>"], [200, "[1]"], [200, "{}"], [204, undefined], [307, ""], [503, '{"detail":"down"}'], [429, "null"], [0, ""]]) {
      await assert.rejects((status ? odd : impatient).take({}), (err) => err instanceof StintError && !(err instanceof Refused) && err.status === status, `${status} ${body}`);
    }
    [status, body] = [200, '{"allowed":true,"limits":[],"new_field":1}'];
    assert.ok((await odd.take({})).allowed);
    [status, body] = [200, "[1]"];
    await assert.rejects(odd.explain({}), StintError);
    [status, body] = [200, '{"usage":[{"limit":"l"}],"incomplete":["n2"]}'];
    const rows = await odd.usage();
    assert.deepEqual([rows.length, rows[0].limit, rows.incomplete], [1, "l", ["n2"]]);

    const open = '{"id":"X","state":"open","reserved":1,"ends":""}';
    [status, body] = [200, open];
    const r = await odd.reserve({ a: "b" }, { ttl: 1.5, declared: 7, chargeExpired: true });
    assert.deepEqual(asked, { attributes: { a: "b" }, ttl: "1.5s", declared: 7, charge_expired: true });
    await r.renew(3, { ttl: 2 });
    assert.deepEqual(asked, { id: "X", used: 3, ttl: "2s" });

    // A release that fails is an error, unless the body has one of its own.
    for (const error of [undefined, new RangeError("mine")]) {
      [status, body] = [200, open];
      const reserving = odd.reserving({}, {}, () => {
        status = 503;
        if (error) throw error;
      });
      await assert.rejects(reserving, error ?? StintError);
    }

    status = 0;
    const stop = new AbortController();
    setTimeout(() => stop.abort(new RangeError("gone")), 20);
    await assert.rejects(odd.take({}, { signal: stop.signal }), RangeError);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

// Decisions are of the request that asked, also where others are given up in the middle.
test("calls that are given up", async () => {
  await Promise.all(
    Array.from({ length: 200 }, async () => {
      const path = oneOf(["/always", "/never"]), stop = new AbortController();
      if (random() < 0.3) setTimeout(() => stop.abort(new RangeError("gone")), random() * 10);
      try {
        const d = await client.take({ path }, { signal: stop.signal });
        assert.deepEqual([d.allowed, d.results.map((r) => r.name)], [path === "/always", [path.slice(1)]]);
      } catch (err) {
        if (!(err instanceof RangeError)) throw err;
      }
    }),
  );
});

/**
 * A server that ends connections at random: before, in the middle of or after a request, or within its answer. respond returns the
 * answer to a request of its head, which is also lost, and its body.
 */
const breaking = async (respond) => {
  const sockets = new Set();
  const server = createTCPServer((connection) => {
    let text = "";
    sockets.add(connection);
    connection.on("error", () => {});
    connection.on("data", async (data) => {
      text += data;
      const head = text.indexOf("\r\n\r\n");
      if (head < 0) return;
      const end = oneOf(["no", "no", "no", "head", "body", "answer", "after"]);
      if (end === "head") return (broken.ends++, connection.destroy());
      const length = Number(/content-length: (\d+)/i.exec(text)[1]);
      if (text.length < head + 4 + length) return;
      const request = [text.slice(0, head), text.slice(head + 4)];
      text = "";
      const all = await respond(...request);
      if (end === "body") return (broken.ends++, connection.destroy());
      if (end === "no") return connection.write(all);
      broken.ends++;
      connection.end(end === "answer" ? all.slice(0, 30) : all);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const broken = { url: `http://127.0.0.1:${server.address().port}`, ends: 0, close: () => (server.close(), sockets.forEach((s) => s.destroy())) };
  return broken;
};
const answerOf = (status, body) => `HTTP/1.1 ${status} X\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;

test("nothing is charged twice", async () => {
  const read = new Map();
  const server = await breaking((head, body) => {
    const { call } = JSON.parse(body).attributes;
    read.set(call, (read.get(call) ?? 0) + 1);
    return answerOf(200, '{"allowed":true,"limits":[]}');
  });
  const broken = new Client(server.url, { timeout: 5 });
  let answered = 0, failed = 0;
  try {
    for (let i = 0; i < 200; i++) {
      try {
        await broken.take({ call: String(i) }, { cost: 100 });
        answered++;
        assert.equal(read.get(String(i)), 1);
      } catch (err) {
        assert.ok(err instanceof StintError && [0, 200].includes(err.status), String(err));
        failed++;
      }
    }
    assert.deepEqual([...read].filter(([, n]) => n > 1), [], "a take that was read is not sent again");
    assert.ok(answered > 20 && failed > 20 && failed <= server.ends, `${answered} answered, ${failed} failed, ${server.ends} ended`);
  } finally {
    broken.close(); // or the process goes on for as long as the kept connection
    server.close();
  }
});

// The service itself behind such connections: also its answers are lost after it has decided.
for (const [over, options] of [["connections of its own", {}], ["fetch", { fetch }]]) {
  test(`a take with a key is charged once, over ${over}`, async () => {
    const server = await breaking(async (head, body) => {
      const [, key] = /\r\nidempotency-key: (.*)/i.exec(head) ?? [];
      const r = await fetch(`${process.env.STINT_URL}/v1/take`, { method: "POST", headers: key ? { "Idempotency-Key": key } : {}, body });
      return answerOf(r.status, await r.text());
    });
    const broken = new Client(server.url, { timeout: 120, maxSockets: 4, ...options });
    const tokens = request("/tokens"), costs = Array.from({ length: 100 }, () => 1 + Math.floor(random() * 5));
    try {
      const answers = await Promise.all(costs.map((cost, i) => {
        const idempotencyKey = `${tokens.user} ${i}`;
        return random() < 0.5 ? broken.take(tokens, { cost, idempotencyKey }) : broken.wait(tokens, { cost, idempotencyKey });
      }));
      assert.ok(answers.every((d) => d.allowed));
      const repeated = answers.filter((d) => d.repeated).length;
      assert.ok(repeated > 10 && repeated <= server.ends, `${repeated} of 100 were repeated`);
      assert.equal(1000 - (await left(tokens)), costs.reduce((a, b) => a + b));
    } finally {
      broken.close();
      server.close();
    }
  });
}

test("a key", async () => {
  const two = request("/two"), idempotencyKey = two.user, seen = [];
  for (const ask of ["take", "take", "wait"]) seen.push(await client[ask](two, { idempotencyKey }));
  assert.deepEqual(seen.map((d) => [d.allowed, d.repeated]), [[true, false], [true, true], [true, true]]);
  assert.equal((await client.take(two, { cost: 0 })).results[0].remaining, 1);
  for (const repeated of [false, true]) {
    const d = await client.take(two, { cost: 2, countRefused: true, idempotencyKey });
    assert.deepEqual([d.allowed, d.repeated], [false, repeated]);
  }
  for (const wrong of ["", " k", "k".repeat(257), "k\r\nX: y", "ü", "k\n"]) {
    for (const ask of ["take", "wait"]) await assert.rejects(client[ask](two, { idempotencyKey: wrong }), TypeError, wrong);
  }
  // A call that finds no service was not sent, and fails at once: it would last for an hour. A signal ends one that is sent again and again.
  await assert.rejects(new Client("http://127.0.0.1:2", { timeout: 3600 }).take(two, { idempotencyKey }), StintError);
  const stop = new AbortController();
  let times = 0;
  const server = createTCPServer((connection) => {
    if (++times === 4) stop.abort(new RangeError("gone"));
    connection.on("error", () => {}).on("data", () => connection.destroy());
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  try {
    const lost = new Client(`http://127.0.0.1:${server.address().port}`, { timeout: 3600 });
    await assert.rejects(lost.take(two, { idempotencyKey, signal: stop.signal }), RangeError);
    const short = new Client(`http://127.0.0.1:${server.address().port}`, { timeout: 0.3 });
    await assert.rejects(short.take(two, { idempotencyKey }), (err) => err instanceof StintError && err.status === 0);
  } finally {
    server.close();
  }
});

// An answer keeps its connection unless it says otherwise: of HTTP/1.1 without a field Connection, as the service sends it, or of
// HTTP/1.0 with one. Each kind of answer comes at random, and the connections that are accepted are counted.
test("connections are kept", async () => {
  const body = '{"allowed":true,"limits":[]}';
  const answers = [
    ["1.1", "", true], ["1.1", "", true], ["1.1", "Connection: keep-alive\r\n", true], ["1.1", "connection: Close\r\n", false],
    ["1.0", "", false], ["1.0", "Connection: Keep-Alive\r\n", true],
  ];
  let accepted = 0, answer;
  const server = createTCPServer((connection) => {
    accepted++;
    let text = "";
    connection.on("error", () => {});
    connection.on("data", (data) => {
      text += data;
      const head = text.indexOf("\r\n\r\n");
      if (head < 0 || text.length < head + 4 + Number(/content-length: (\d+)/i.exec(text)[1])) return;
      text = "";
      const [version, field] = answer;
      connection.write(`HTTP/${version} 200 OK\r\n${field}Content-Length: ${body.length}\r\n\r\n${body}`);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const one = new Client(`http://127.0.0.1:${server.address().port}`);
  try {
    let want = 0, kept = false;
    for (let i = 0; i < 100; i++) {
      if (!kept) want++;
      answer = oneOf(answers);
      kept = answer[2];
      await one.take({ call: String(i) });
      assert.equal(accepted, want, `call ${i}, answered by ${answer}`);
    }
  } finally {
    one.close();
    server.close();
  }
  // The service itself: calls one after the other have one connection.
  const relayed = [];
  const relay = createTCPServer((connection) => {
    relayed.push(connection);
    const { hostname, port } = new URL(process.env.STINT_URL);
    const service = connect(Number(port), hostname);
    for (const [from, to] of [[connection, service], [service, connection]]) from.on("error", () => {}).on("close", () => to.destroy()).pipe(to);
  });
  await new Promise((ready) => relay.listen(0, "127.0.0.1", ready));
  const real = new Client(`http://127.0.0.1:${relay.address().port}`);
  try {
    for (let i = 0; i < 20; i++) assert.ok((await real.take({ path: "/always" })).allowed);
    assert.equal(relayed.length, 1);
  } finally {
    real.close();
    relay.close();
  }
});

// The types are written by hand: they have each class and method that the module has, and no other.
test("types", async () => {
  const types = await readFile(new URL("../src/index.d.cts", import.meta.url), "utf8");
  assert.deepEqual([...types.matchAll(/^export (?:class|function) (\w+)/gm)].map((m) => m[1]).sort(), Object.keys(stint).sort());
  for (const name of ["Client", "Reservation"]) {
    const [text] = new RegExp(`^export class ${name} [^]*?^}`, "m").exec(types);
    const declared = [...text.matchAll(/^  (\w+)(?:<T>)?\(/gm)].map((m) => m[1]);
    const real = Object.getOwnPropertyNames(stint[name].prototype).filter((n) => !n.startsWith("_"));
    assert.deepEqual(declared.filter((n) => n !== "constructor").sort(), real.filter((n) => n !== "constructor").sort());
  }
});
