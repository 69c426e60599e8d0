-- Asks stint once for each request and leaves its answer in transaction variables.
-- Fails open: when stint cannot be asked, txn.stint_error is set and the request
-- goes on.

-- Headers that belong to the client's own connection, or to the body, which is not
-- sent. Host would name the site that is protected, and stint refuses strange names.
local dropped = {}
for _, name in ipairs({
  "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
  "content-length", "content-type", "expect", "accept-encoding", "range", "host",
}) do
  dropped[name] = true
end

local answers = {
  "retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-warning", "location", "x-ratelimit-degraded",
  "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}

core.register_action("stint", { "http-req" }, function(txn, url)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    if not dropped[name] and name:sub(1, 12) ~= "x-forwarded-" then
      local list = {}
      for i = 0, #values do
        list[#list + 1] = values[i]
      end
      headers[name] = list
    end
  end
  -- stint believes these, because it trusts this proxy: none may be the client's.
  headers["x-forwarded-for"] = { txn.sf:src() }
  headers["x-forwarded-method"] = { txn.sf:method() }
  headers["x-forwarded-proto"] = { txn.f:ssl_fc() == 1 and "https" or "http" }
  headers["x-forwarded-uri"] = { txn.sf:pathq() }
  headers["x-forwarded-host"] = { txn.sf:req_hdr("host") }
  -- Should the client below ask again after all, stint charges once.
  headers["x-request-id"] = { txn.f:uuid() }

  -- Longer than the hop's own time-outs together, so that the hop gives up first:
  -- on a time-out of its own the client would ask again.
  local res = core.httpclient():get({ url = url, headers = headers, timeout = 1000 })

  -- Refused: any 4xx, and a 3xx or 5xx that stint says is a refusal, as on_exceed and
  -- on_store_failure may ask for. Other 5xx, such as the hop's own 502, 503 and 504,
  -- are a failure to ask.
  local decision = res ~= nil and res.headers["x-stint-decision"]
  local said = decision and decision[0] == "reject" or false
  local refused = res ~= nil and res.status >= 300 and (said or res.status >= 400 and res.status < 500)
  if res == nil or res.status == 0 or (res.status >= 400 and not refused) then
    txn:set_var("txn.stint_error", true)
    return
  end
  txn:set_var("txn.stint_status", res.status)
  txn:set_var("txn.stint_refused", refused)
  for _, name in ipairs(answers) do
    local value = res.headers[name]
    if value ~= nil and value[0] ~= nil then
      txn:set_var("txn.stint_" .. name:gsub("-", "_"), value[0])
    end
  end
end, 1)
