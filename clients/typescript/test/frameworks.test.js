// The client within Express and Fastify, and over a unix socket: STINT_URL is a service with ../../limits.yaml, STINT_UNIX one on a
// socket. STINT_REQUESTS is how many requests each framework gets, 200 by default.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { after, test } from "node:test";
import express from "express";
import fastify from "fastify";
import { Agent, fetch as undiciFetch, request } from "undici";
import { Client, StintError } from "stint-client";
import { stint as limited } from "stint-client/express";
import { stint as plugin } from "stint-client/fastify";

const url = process.env.STINT_URL;
const requests = Number(process.env.STINT_REQUESTS ?? 200);
const client = new Client(url, { timeout: 60, maxSockets: 3 });
const agent = new Agent({ connections: 16, bodyTimeout: 120_000, headersTimeout: 120_000 });
after(async () => {
  await client.close();
  await agent.close();
});

const user = (req) => ({ user: req.headers["x-user"] ?? "" });
const who = async (name) => (await client.explain({ path: "/fifty", user: name })).limits[0].key;

/** How many connections this process has to the service. */
const sockets = () => process._getActiveHandles().filter((h) => h.remotePort === Number(new URL(url).port)).length;

const servers = {
  express: async () => {
    const app = express();
    app.use(limited(client, { attributes: user }));
    app.get("/who/:name", async (req, res) => res.json(await who(req.params.name)));
    app.get("/raise", () => { throw new RangeError("mine"); });
    app.use((req, res) => res.json({ degraded: req.headers["x-ratelimit-degraded"] ?? null }));
    app.use((err, req, res, next) => res.status(500).end());
    const server = await new Promise((ready) => { const s = app.listen(0, "127.0.0.1", () => ready(s)); });
    return [server.address().port, () => new Promise((closed) => { server.close(closed); server.closeAllConnections(); })];
  },
  fastify: async () => {
    const app = fastify();
    await app.register(plugin, { client, attributes: user });
    app.get("/who/:name", (req) => who(req.params.name));
    app.get("/raise", async () => { throw new RangeError("mine"); });
    app.get("/*", async (req) => ({ degraded: req.headers["x-ratelimit-degraded"] ?? null }));
    await app.listen({ port: 0, host: "127.0.0.1" });
    return [app.server.address().port, () => app.close()];
  },
};

for (const [name, start] of Object.entries(servers)) {
  test(name, async () => {
    const [port, stop] = await start();
    const get = async (path, headers = {}) => {
      const r = await request(`http://127.0.0.1:${port}${path}`, { headers: { "x-user": `${name}-${process.pid}`, ...headers }, dispatcher: agent });
      return { status: r.statusCode, headers: r.headers, body: await r.body.text() };
    };
    try {
      let r = await get("/two");
      assert.deepEqual([r.status, r.headers["ratelimit-policy"]], [200, '"two";q=2;w=3600']);
      assert.equal((await get("//x/..//two")).status, 200);
      r = await get("/two");
      assert.deepEqual([r.status, r.headers["content-type"].split(";")[0], JSON.parse(r.body)["violated-policies"]], [403, "application/problem+json", ["two"]]);
      assert.ok(Number(r.headers["retry-after"]) > 0);
      for (const want of [200, 200, 503]) assert.equal((r = await get("/own")).status, want);
      assert.deepEqual([r.body, r.headers["content-type"].split(";")[0], r.headers["x-reason"]], ["<p>ü</p>", "text/html", "quota"]);
      for (const want of [null, "tag"]) assert.deepEqual(JSON.parse((await get("/tag", { "x-ratelimit-degraded": "forged" })).body), { degraded: want });
      for (const [path, want] of [["/job", 200], ["/raise", 500], ["/job", 200]]) {
        do r = await get(path); while (r.status === 429); // the permit is given back after the answer was sent
        assert.equal(r.status, want);
      }
      let most = 0, next = 0;
      const delay = monitorEventLoopDelay({ resolution: 1 });
      delay.enable();
      await Promise.all(Array.from({ length: 16 }, async () => {
        while (next < requests) {
          const n = next++;
          const { body } = await get(`/who/u${n}`);
          assert.deepEqual(JSON.parse(body), { user: `u${n}` });
          most = Math.max(most, sockets());
        }
      }));
      delay.disable();
      console.log(`event loop of ${name}: 99th percentile ${(delay.percentile(99) / 1e6).toFixed(1)} ms`);
      assert.ok(most <= 3, `${most} connections`);
    } finally {
      await stop();
    }
  });
}

test("one module for import and require", () => {
  const required = createRequire(import.meta.url)("stint-client");
  assert.equal(required.Client, Client);
});

test("unix socket", async () => {
  const path = decodeURIComponent(process.env.STINT_UNIX.replace("http+unix://", ""));
  for (const form of [process.env.STINT_UNIX, `unix:${path}`, `unix://${path}`]) {
    const local = new Client(form);
    for (const p of ["/always", "/never"]) assert.equal((await local.take({ path: p })).allowed, p === "/always");
    await local.close();
  }
  await assert.rejects(new Client("unix:/nowhere").take({}), (err) => err instanceof StintError && /unix:\/nowhere/.test(err.message));
  assert.throws(() => new Client("unix:"), TypeError);
});

test("fetch of undici, and a pool that is used up", async () => {
  assert.equal((await new Client(url, { fetch: undiciFetch }).take({ path: "/never" })).allowed, false);
  const small = new Client(url, { timeout: 0.2, maxSockets: 1 });
  const second = { path: "/second", user: `pool-${process.pid}` };
  await small.take(second);
  const waiting = small.wait(second);
  await assert.rejects(small.take({ path: "/always" }), /maxSockets/);
  assert.ok((await waiting).allowed);
  await small.close();
  const stop = new AbortController();
  stop.abort(new RangeError("gone"));
  const r = await client.reserve({ path: "/tokens", user: `signal-${process.pid}` }, { cost: 1 });
  for (const call of [() => r.renew(1, stop), () => r.commit(1, stop), () => r.release(stop), () => client.finish({}, 1, stop)]) await assert.rejects(call, RangeError);
  await r.release();
});
