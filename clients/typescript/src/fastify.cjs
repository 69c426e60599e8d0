"use strict";
const { admit, checked, describe } = require("./web.cjs");

/** A plugin for Fastify: app.register(stint, { client }). */
async function stint(app, { client, ...options }) {
  const how = checked(options);
  app.addHook("onRequest", async (request, reply) => {
    const answer = await admit(client, how, request, describe(request.ip, request.method, request.raw.url, request.headers.host), request.headers, reply.raw);
    if (answer) return reply.code(answer.status).headers(answer.headers).send(answer.body);
  });
}
stint[Symbol.for("skip-override")] = true; // its hook is for all routes, not for those of the plugin
stint[Symbol.for("fastify.display-name")] = "stint-client";

module.exports = { stint };
