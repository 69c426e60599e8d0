import all from "./fastify.cjs";

export const { stint } = all;
