"use strict";
const { admit, checked, describe } = require("./web.cjs");

/** Middleware for Express and others of its form. */
function stint(client, options) {
  const how = checked(options);
  return (req, res, next) => {
    admit(client, how, req, describe(req.ip ?? req.socket.remoteAddress, req.method, req.originalUrl ?? req.url, req.headers.host), req.headers, res).then((answer) => {
      if (!answer) return next();
      res.writeHead(answer.status, { ...answer.headers, "Content-Length": Buffer.byteLength(answer.body) });
      res.end(answer.body);
    }, next);
  };
}

module.exports = { stint };
