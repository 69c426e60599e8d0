// Reads queries as lines of JSON, asks by the TypeScript client, and writes replies as lines of JSON.
import { createInterface } from "node:readline";
import { Client, StintError } from "../../clients/typescript/src/index.js";

const client = new Client(process.argv[2], { timeout: 30 });
const reservations = new Map();

function shown(decision, reservation) {
  const results = decision.results.filter((r) => !r.raw.shadow);
  const tightest = results.reduce((a, b) => (a && a.remaining <= b.remaining ? a : b), undefined);
  return {
    allowed: decision.allowed,
    status: decision.status,
    limit: decision.violated[0] ?? tightest?.name ?? "",
    reason: decision.reason,
    remaining: tightest?.remaining ?? -1,
    retry: decision.retryAfter,
    location: decision.location,
    permit: decision.permit ?? 0,
    tag: Object.values(decision.tags)[0] ?? "",
    body: decision.body ?? "",
    content_type: decision.contentType ?? "",
    field: decision.headers?.["X-Reason"] ?? decision.headers?.["x-reason"] ?? "",
    warning: (decision.warnings ?? []).join(", "),
    id: reservation?.id ?? "",
  };
}

async function answer({ do: verb, attributes, cost, permit, id }) {
  switch (verb) {
    case "take":
      return shown(await client.take(attributes, { cost }));
    case "reserve": {
      const reservation = await client.reserve(attributes, { cost, ttl: 60 });
      reservations.set(reservation.id, reservation);
      return shown(reservation.decision, reservation);
    }
    case "finish":
      await client.finish(attributes, permit);
      return {};
    case "release":
      await reservations.get(id).release();
      return {};
    default:
      await reservations.get(id).commit(1);
      return {};
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  let out;
  try {
    out = await answer(JSON.parse(line));
  } catch (err) {
    if (!(err instanceof StintError)) throw err;
    out = { error: err.message };
  }
  process.stdout.write(JSON.stringify(out) + "\n");
}
