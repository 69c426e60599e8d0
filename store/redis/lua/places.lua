-- Places in flight are a sorted set of members by expiry, and a hash: u what is
-- used, l when a place was last given, c<member> a cost other than 1, n<permit>
-- how many members a permit has had, where that is more than one.
local function places()
	local function inflight(i)
		local v = call('HMGET', second[i], 'u', 'l')
		return tonumber(v[1] or 0), max(now, tonumber(v[2] or 0))
	end

	local function costof(i, member)
		return tonumber(call('HGET', second[i], 'c' .. member) or 1)
	end

	-- gone returns the members that have expired, and what they used.
	local function gone(i, moment)
		local members = call('ZRANGEBYSCORE', KEYS[i], '-inf', string.format('%.0f', moment))
		local freed = 0
		for m = 1, #members do
			freed = freed + costof(i, members[m])
		end
		return members, freed
	end

	local function give(i, members, used)
		for m = 1, #members do
			call('ZREM', KEYS[i], members[m])
			call('HDEL', second[i], 'c' .. members[m])
		end
		call('HSET', second[i], 'u', string.format('%.0f', used))
	end

	local function occupy(i, p, cost, permit)
		local used, moment = inflight(i)
		local members, freed = gone(i, moment)
		if #members > 0 then
			give(i, members, used - freed)
		end
		local member = permit
		local had = tonumber(call('HGET', second[i], 'n' .. permit) or 0)
		if had > 0 or call('ZSCORE', KEYS[i], permit) then
			had = max(had, 1)
			member = permit .. '.' .. had
			call('HSET', second[i], 'n' .. permit, had + 1)
		end
		local expires = moment + pa[p]
		call('ZADD', KEYS[i], string.format('%.0f', expires), member)
		call('HSET', second[i], 'u', string.format('%.0f', used - freed + cost), 'l', string.format('%.0f', moment))
		if cost ~= 1 then
			call('HSET', second[i], 'c' .. member, string.format('%.0f', cost))
		end
		local last = tonumber(call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')[2])
		local ttl = max(1, ceil((last - now) / 1000) + hold)
		call('PEXPIRE', KEYS[i], ttl)
		call('PEXPIRE', second[i], ttl)
	end

	local function leave(i, permit)
		local had = tonumber(call('HGET', second[i], 'n' .. permit) or 1)
		local freed, members = 0, {}
		for m = 0, had - 1 do
			local member = m == 0 and permit or permit .. '.' .. m
			if call('ZSCORE', KEYS[i], member) then
				freed = freed + costof(i, member)
				members[#members + 1] = member
			end
		end
		if #members > 0 then
			local used = tonumber(call('HGET', second[i], 'u') or 0)
			give(i, members, used - freed)
		end
		call('HDEL', second[i], 'n' .. permit)
	end

	return {used = inflight, cost = costof, gone = gone, occupy = occupy, leave = leave}
end
