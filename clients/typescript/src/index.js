// The module for import. It is that for require, so that a program with both has one of each class.
import all from "./index.cjs";

export const { Client, Refused, Reservation, StintError, response } = all;
