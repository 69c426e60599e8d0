-- A sliding window log is a list: the sum of all costs, then a moment and a cost
-- for each entry, the oldest first. L holds what is known of each list.
local L = {}
local function logs()
	local function loadlog(i)
		local key = KEYS[i]
		local log = {sum = 0, n = 0, dropped = 0, head = {}, loaded = 0}
		local header = call('LINDEX', key, 0)
		if header then
			log.sum = unpack_('<d', header)
			log.n = call('LLEN', key) - 1
		end
		log.stored = log.n
		if log.n > 0 then
			log.newest, log.last = unpack_('<dd', call('LINDEX', key, -1))
		end
		L[i] = log
		return log
	end

	-- entry returns the moment and cost of the i-th oldest entry that is kept.
	local function entry(log, key, i)
		if i == log.n then
			return log.newest, log.last
		end
		i = i + log.dropped
		while log.loaded < i do
			local more = call('LRANGE', key, log.loaded + 1, log.loaded + 32)
			for j = 1, #more do
				log.head[log.loaded + j] = more[j]
			end
			log.loaded = log.loaded + #more
		end
		return unpack_('<dd', log.head[i])
	end

	-- live returns how many entries have left the window, and what the others used.
	local function live(log, key, period)
		if log.n == 0 then
			return 0, 0
		end
		if log.expired then
			return log.expired, log.used -- many requests may ask in one run
		end
		local since = max(now, log.newest) - period
		local expired, used = 0, log.sum
		while expired < log.n do
			local moment, cost = entry(log, key, expired + 1)
			if moment > since then
				break
			end
			used = used - cost
			expired = expired + 1
		end
		log.expired, log.used = expired, used
		return expired, used
	end

	-- drop comes first in everything that changes a list.
	local function drop(log, key, count)
		log.expired = nil
		for _ = 1, count do
			local _, cost = entry(log, key, 1)
			log.sum = log.sum - cost
			log.dropped = log.dropped + 1
			log.n = log.n - 1
		end
	end

	local function record(i, log, key, period, quota, cost)
		drop(log, key, (live(log, key, period)))
		cost = min(cost, quota + 1)
		if log.n > 0 and log.newest >= now then
			local add = min(cost, quota + 1 - min(log.last, quota + 1))
			log.last = log.last + add
			log.sum = log.sum + add
			log.touched = true
		else
			if log.n > 0 and log.touched then
				-- The newest was changed and is not written yet.
				local was = pack('<dd', log.newest, log.last)
				call('LSET', key, -1, was)
				if log.loaded >= log.n + log.dropped then
					log.head[log.n + log.dropped] = was
				end
			end
			log.touched = nil
			log.newest, log.last = now, cost
			log.n = log.n + 1
			log.sum = log.sum + cost
			log.added = true
		end
		while log.n > 1 do
			local _, oldest = entry(log, key, 1)
			if log.sum - oldest <= quota then
				break
			end
			drop(log, key, 1)
		end
		dirty[i] = true
	end

	local function savelog(i, log, period)
		local key = KEYS[i]
		if log.n <= 0 then
			call('DEL', key)
			return
		end
		local newest = pack('<dd', log.newest, log.last)
		if log.stored == 0 or log.dropped >= log.stored then
			call('DEL', key)
			call('RPUSH', key, pack('<d', log.sum), newest)
		else
			if log.dropped > 0 then
				call('LTRIM', key, log.dropped + 1, -1)
				call('LPUSH', key, pack('<d', log.sum))
			else
				call('LSET', key, 0, pack('<d', log.sum))
			end
			if log.added then
				call('RPUSH', key, newest)
			elseif log.touched then
				call('LSET', key, -1, newest)
			end
		end
		local ttl = ceil((log.newest + period - now) / 1000) + hold
		call('PEXPIRE', key, ttl > 1 and ttl or 1)
	end

	-- Refunds shorten the oldest entries; they are rare, so they work on the list.
	local function refundlog(i, log, key, period, cost)
		drop(log, key, (live(log, key, period)))
		dirty[i] = true
		while log.n > 0 and cost > 0 do
			local moment, oldest = entry(log, key, 1)
			if oldest > cost then
				log.sum = log.sum - cost
				if log.n == 1 then
					log.last = oldest - cost
					log.touched = true
				else
					local place = log.dropped + 1
					log.head[place] = pack('<dd', moment, oldest - cost)
					call('LSET', key, place, log.head[place])
				end
				return
			end
			cost = cost - oldest
			drop(log, key, 1)
		end
	end

	return {load = loadlog, entry = entry, live = live, record = record, save = savelog, refund = refundlog}
end
