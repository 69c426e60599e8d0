export * from "./express.cjs";
