import all from "./express.cjs";

export const { stint } = all;
