-- Places in flight are a sorted set of members by expiry, and a hash: u what is
-- used, l when a place was last given, w whether some cost was not 1, and then
-- c<member> that cost; d whether some permit came twice, and then n<permit> how many
-- members it has had. H holds what is known of each.
local H = {}
local function places()
	local function whole(number)
		return string.format('%.0f', number)
	end

	local function costof(i, member)
		return H[i].weighted and tonumber(call('HGET', second[i], 'c' .. member)) or 1
	end

	-- load returns who is in flight.
	local function load(i)
		local h = H[i]
		if not h then
			local v = call('HMGET', second[i], 'u', 'l', 'w', 'd')
			h = {used = tonumber(v[1] or 0), latest = tonumber(v[2] or 0), weighted = v[3], doubled = v[4]}
			h.moment = max(now, h.latest)
			H[i] = h
		end
		return h
	end

	-- expired returns the members whose time is over, and what they used.
	local function expired(i)
		local h = load(i)
		if not h.gone then
			h.gone = call('ZRANGEBYSCORE', KEYS[i], '-inf', whole(h.moment))
			h.freed = #h.gone
			if h.weighted then
				h.freed = 0
				for m = 1, #h.gone do
					h.freed = h.freed + costof(i, h.gone[m])
				end
			end
		end
		return h.gone, h.freed
	end

	-- last is when the last place expires; 0 when there is none.
	local function last(i)
		local h = load(i)
		if not h.last then
			h.last = tonumber(call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')[2] or 0)
		end
		return h.last
	end

	local function remove(i, member)
		if call('ZREM', KEYS[i], member) == 0 then
			return
		end
		local h = H[i]
		h.used = h.used - costof(i, member)
		h.gone, h.last, dirty[i] = nil, nil, true
		if h.weighted then
			call('HDEL', second[i], 'c' .. member)
		end
	end

	local function occupy(i, p, cost, permit)
		local h = load(i)
		for _, member in ipairs((expired(i))) do
			remove(i, member)
		end
		local expires = h.moment + pa[p]
		local member = permit
		local had = h.doubled and tonumber(call('HGET', second[i], 'n' .. permit)) or 0
		if had > 0 or call('ZADD', KEYS[i], 'NX', whole(expires), member) == 0 then
			had = max(had, 1)
			member = permit .. '.' .. had
			call('ZADD', KEYS[i], whole(expires), member)
			call('HSET', second[i], 'd', 1, 'n' .. permit, had + 1)
			h.doubled = '1'
		end
		if cost ~= 1 then
			call('HSET', second[i], 'w', 1, 'c' .. member, whole(cost))
			h.weighted = '1'
		end
		h.used, h.latest, h.last = h.used + cost, h.moment, max(last(i), expires)
	end

	local function leave(i, permit)
		local h = load(i)
		local had = h.doubled and tonumber(call('HGET', second[i], 'n' .. permit)) or 1
		for m = 0, had - 1 do
			remove(i, m == 0 and permit or permit .. '.' .. m)
		end
		if h.doubled then
			call('HDEL', second[i], 'n' .. permit)
		end
	end

	-- keep has the places of a permit expire a whole time-out from now.
	local function keep(i, p, permit)
		local h = load(i)
		local had = h.doubled and tonumber(call('HGET', second[i], 'n' .. permit)) or 1
		for m = 0, had - 1 do
			local member = m == 0 and permit or permit .. '.' .. m
			local ends = tonumber(call('ZSCORE', KEYS[i], member) or 0)
			if ends > h.moment then
				call('ZADD', KEYS[i], whole(max(ends, h.moment + pa[p])), member)
				h.latest, h.last, dirty[i] = h.moment, nil, true
			end
		end
	end

	local function save(i)
		local h = H[i]
		call('HSET', second[i], 'u', whole(h.used), 'l', whole(h.latest))
		local ttl = max(1, ceil((max(last(i), h.latest) - now) / 1000) + hold)
		call('PEXPIRE', KEYS[i], ttl)
		call('PEXPIRE', second[i], ttl)
	end

	-- check fails for a key that holds something else.
	local function check(i)
		call('ZCARD', KEYS[i])
		assert(load(i).used, 'places without a number')
	end

	return {load = load, check = check, expired = expired, last = last, cost = costof, occupy = occupy, leave = leave, keep = keep, save = save}
end
