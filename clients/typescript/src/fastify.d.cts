import type { FastifyPluginAsync, FastifyRequest } from "fastify";
import type { Attributes, Client } from "./index.cjs";

/**
 * A plugin for Fastify: takes before each request, and answers those that are refused. A request has the attributes ip
 * (see trustProxy), method, path and host, and those that attributes returns. onError says what becomes of a request
 * without a decision: "reject", the default, answers 503, "allow" lets it pass.
 */
export const stint: FastifyPluginAsync<{
  client: Client;
  attributes?: (request: FastifyRequest) => Attributes | Promise<Attributes>;
  onError?: "reject" | "allow";
}>;
