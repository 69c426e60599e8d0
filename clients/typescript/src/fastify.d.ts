export * from "./fastify.cjs";
