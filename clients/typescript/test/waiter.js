// One process of TestWaitIsFair: waits for permits of PATH for SECONDS, once stdin ends, and prints how many it got and its calls.
import { text } from "node:stream/consumers";
import { Client, Refused } from "stint-client";

const [path, user, seconds] = process.argv.slice(2);
let calls = 0, got = 0;
const client = new Client(process.env.STINT_URL, { fetch: (...args) => (calls++, fetch(...args)) });
await client.take({ path, user }, { cost: 0 });
console.log("ready");
await text(process.stdin);
calls = 0;
const end = performance.now() + seconds * 1000;
try {
  for (;; got++) await client.wait({ path, user }, { timeout: (end - performance.now()) / 1000 });
} catch (err) {
  if (!(err instanceof Refused)) throw err;
  console.log(got, calls);
}
