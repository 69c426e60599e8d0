import type { IncomingMessage, ServerResponse } from "node:http";
import type { Attributes, Client } from "./index.cjs";

/**
 * Middleware for Express and others of its form: takes before each request, and answers those that are refused. A request
 * has the attributes ip (req.ip: see "trust proxy"), method, path and host, and those that attributes returns. onError says
 * what becomes of a request without a decision: "reject", the default, answers 503, "allow" lets it pass.
 */
export function stint<Request extends IncomingMessage = IncomingMessage>(
  client: Client,
  options?: { attributes?: (request: Request) => Attributes | Promise<Attributes>; onError?: "reject" | "allow" },
): (request: Request, response: ServerResponse, next: (err?: unknown) => void) => void;
