// Time of one take at a time on one kept connection, beside undici that sends the same request, and ioredis: medians in microseconds, and
// their ratio to undici. Rounds alternate, so that all see the same machine. Arguments: rounds, calls. STINT_REDIS is the port for clients of Redis.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { Client as Undici } from "undici";
import { Client } from "stint-client";

const [rounds, calls] = process.argv.slice(2).map(Number);
const [, path] = /^http\+unix:\/\/(.*)$/.exec(process.env.STINT_URL) ?? [];
const bare = path ? new Undici("http://localhost", { socketPath: decodeURIComponent(path) }) : new Undici(process.env.STINT_URL);
const client = new Client(process.env.STINT_URL);
const attributes = { path: "/always", user: "speed" };
const headers = { "Content-Type": "application/json", Prefer: "wait=5.000" };
const body = JSON.stringify({ attributes, cost: 1 });
const each = {
  undici: async () => {
    const r = await bare.request({ method: "POST", path: "/v1/take", headers, body });
    assert.ok((await r.body.text()).includes('"allowed":true'));
  },
  "Client.take": async () => assert.ok((await client.take(attributes)).allowed),
};
if (process.env.STINT_REDIS) {
  const redis = new Redis(Number(process.env.STINT_REDIS));
  each["ioredis CL.THROTTLE"] = () => redis.call("CL.THROTTLE", "always", 1000000, 1000000, 1);
}
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
const taken = Object.fromEntries(Object.keys(each).map((name) => [name, []]));
for (let round = 0; round < rounds; round++) {
  for (const [name, call] of Object.entries(each)) {
    for (let i = 0; i < calls; i++) {
      const begin = performance.now();
      await call();
      taken[name].push((performance.now() - begin) * 1000);
    }
  }
}
const base = median(taken.undici);
for (const [name, all] of Object.entries(taken)) console.log(`${name}: ${median(all).toFixed(1)} us, ${(median(all) / base).toFixed(2)}`);
process.exit();
