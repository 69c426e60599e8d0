// Compiled, not run: a program of CommonJS has the same types.
import stint = require("stint-client");
import express = require("stint-client/express");

const client: stint.Client = new stint.Client("unix:/run/stint.sock");
express.stint(client);
