// Compiled, not run (npm run types): a program in TypeScript finds what it needs in the types.
import { Client, Refused, StintError, type Decision } from "stint-client";

const stint = new Client("http://127.0.0.1:8080", { token: "secret", timeout: 2 });
const decision: Decision = await stint.take({ user: "u1" }, { cost: 2 });
const wait: number | null = decision.retryAfter;
const used: number = await stint.reserving({ tenant: "acme" }, { cost: 800, ttl: 60 }, async (r) => {
  await r.renew(100);
  return (await r.commit(312)).reserved;
});
const rows = await stint.usage({ by: "month", key: ["user=u1"] });
try {
  await stint.wait({ user: "u1" }, { timeout: 5 });
} catch (err) {
  if (err instanceof Refused) console.log(err.decision.violated, wait, used, rows[0]?.used);
  else if (err instanceof StintError) console.log(err.status, err.hint);
}
// @ts-expect-error a value of an attribute is a string
await stint.take({ user: 1 });
