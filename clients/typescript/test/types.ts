// Compiled, not run (npm run types): a program in TypeScript finds what it needs in the types.
import express from "express";
import fastify from "fastify";
import { Client, Refused, StintError, response, type Decision } from "stint-client";
import { stint as limited } from "stint-client/express";
import { stint as plugin } from "stint-client/fastify";
import { fetch as undiciFetch } from "undici";


const stint = new Client("http://127.0.0.1:8080", { token: "secret", timeout: 2 });
const decision: Decision = await stint.take({ user: "u1" }, { cost: 2 });
const wait: number | null = decision.retryAfter;
const used: number = await stint.reserving({ tenant: "acme" }, { cost: 800, ttl: 60 }, async (r) => {
  await r.renew(100);
  return (await r.commit(312)).reserved;
});
const rows = await stint.usage({ by: "month", key: ["user=u1"] });
const incomplete: readonly string[] = rows.incomplete;
try {
  await stint.wait({ user: "u1" }, { timeout: 5 });
} catch (err) {
  if (err instanceof Refused) console.log(err.decision.violated, wait, used, rows[0]?.used, incomplete);
  else if (err instanceof StintError) console.log(err.status, err.hint);
}
const repeated: boolean = (await stint.take({ user: "u1" }, { idempotencyKey: "a-uuid" })).repeated;
await stint.wait({ user: "u1" }, { timeout: 5, idempotencyKey: "a-uuid" }).then((d) => console.log(d.repeated, repeated));
// @ts-expect-error a key is a string
await stint.take({ user: "u1" }, { idempotencyKey: 1 });
// @ts-expect-error a value of an attribute is a string
await stint.take({ user: 1 });

const { signal } = new AbortController();
await stint.finish({ user: "u1" }, decision.permit ?? 0, { signal });
await stint.reserve({ user: "u1" }, { signal }).then((r) => r.renew(1, { signal })).then((r) => r.release({ signal }));
new Client("http://127.0.0.1:8080", { fetch });
new Client("http://127.0.0.1:8080", { fetch: undiciFetch });
express().use(limited(stint, { attributes: (req: express.Request) => ({ user: req.get("X-User") ?? "" }) }));
await fastify().register(plugin, { client: stint, attributes: (request) => ({ user: request.hostname }) });
const answered: number = response(decision).status;

// A decision is always true. Each of these is a mistake that the compiler finds.
// @ts-expect-error not asked for allowed
if (decision) console.log("go on", answered);
// @ts-expect-error not asked for allowed
console.log(decision ? "go on" : "refused");
// @ts-expect-error not asked for allowed
if (!decision) console.log(decision.status);
// @ts-expect-error a promise, not asked for
if (stint.take({ user: "u1" })) console.log("go on");
if (decision.allowed) console.log(decision.permit);
else console.log(decision.retryAfter);
