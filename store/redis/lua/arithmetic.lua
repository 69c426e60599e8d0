-- Making a function takes time, so those for lists are made where there are lists.
local lists = scalars < buckets and logs()
local held = scalars < buckets and places()

-- What is no list, or no places, stops the script here, before it writes, unless
-- a reset makes it good.
local bad
for i = scalars + 1, buckets do
	local p = N[first + i]
	local good, why
	if kinds[p] == LOG then
		good, why = pcall(lists.load, i)
	else
		good, why = pcall(held.check, i)
	end
	if not good then
		bad = bad or {}
		bad[i] = why
		L[i], H[i] = nil, nil
	end
end
if bad then
	local o = at
	while o <= #N do
		for c = 0, N[o + 2] - 1 do
			local i = floor(N[o + 3 + 3 * c] / 4)
			if N[o] == RESET then
				bad[i] = nil
			elseif bad[i] then
				error(bad[i])
			end
		end
		o = o + 3 + 3 * N[o + 2]
	end
end

-- filled returns what a bucket's state would be with a cost more, and the time.
local function filled(i, p, c1, c2)
	local t = pd[p] == 1 and 0 or now
	local u, f = A[i], B[i]
	if u < t then
		u, f = t, 0
	end
	u, f = u + c1, f + c2
	if f >= pa[p] then
		u, f = u + 1, f - pa[p]
	end
	return u, f, t
end

local function fits(i, p, c1, c2)
	local kind = kinds[p]
	if kind == BUCKET then
		if c1 == 0 and c2 == 0 then
			return true
		end
		local u, f, t = filled(i, p, c1, c2)
		local deep = t + pb[p]
		return u < deep or u == deep and f <= pc[p]
	elseif kind == FIXED then
		local quota = c2 > 0 and c2 - 1 or pb[p]
		return c1 <= quota and B[i] <= quota - c1
	elseif kind == SLIDING and pc[p] > 0 then -- a rising window
		return c1 <= max(0, min(pb[p], max(pd[p], C[i] + pc[p])) - B[i])
	elseif kind == SLIDING then
		local room = pb[p] - c1 - B[i]
		if room < 0 then
			return false
		end
		local period = pa[p]
		local left = period - now % period
		if floor(now / period) < A[i] then
			left = period
		end
		local rounding = pd[p]
		if rounding == 0 then
			return not over(C[i], left, room, period)
		elseif rounding == 1 then
			return over(room + 1, period, C[i], left)
		end
		return over(2 * room + 1, period, 2 * C[i], left)
	elseif kind == LOG then
		local list = L[i] or lists.load(i)
		local _, used = lists.live(list, KEYS[i], pa[p])
		return c1 <= pb[p] and used <= pb[p] - c1
	end
	local _, freed = held.expired(i)
	return c1 <= pb[p] and held.load(i).used - freed <= pb[p] - c1
end

local walks = {} -- by bucket, for wait

-- charge takes a cost that fits.
local function charge(i, p, c1, c2)
	local kind = kinds[p]
	walks[i] = nil
	if kind == BUCKET then
		A[i], B[i] = filled(i, p, c1, c2)
	elseif kind == LOG then
		lists.record(i, L[i], KEYS[i], pa[p], pb[p], c1)
	elseif kind == PLACES then
		held.occupy(i, p, c1, ARGV[c2])
	else
		B[i] = B[i] + c1
	end
	dirty[i] = true
end

-- owe takes a cost that does not fit from a bucket, which goes into debt.
local function owe(i, p, c1, c2)
	if A[i] < OWED then
		A[i], B[i] = filled(i, p, c1, c2)
		if A[i] >= OWED then
			A[i], B[i] = OWED, 0
		end
	end
	dirty[i] = true
end

-- run takes a cost from a bucket as often as it fits, again times at most.
local function run(i, p, c1, c2, again)
	if c1 == 0 and c2 == 0 then
		return again
	end
	local t = pd[p] == 1 and 0 or now
	local u, f, unit, deep, deepest = A[i], B[i], pa[p], t + pb[p], pc[p]
	if u < t then
		u, f = t, 0
	end
	local taken = 0
	while taken < again do
		local v, g = u + c1, f + c2
		if g >= unit then
			v, g = v + 1, g - unit
		end
		if v > deep or v == deep and g > deepest then
			break
		end
		u, f, taken = v, g, taken + 1
	end
	if taken > 0 then
		A[i], B[i], dirty[i] = u, f, true
	end
	return taken
end

-- refuse charges what counts though it is refused, and bans, and says whether anything
-- changed.
local function refuse(i, p, c1, c2, fitted, counts)
	local kind = kinds[p]
	if kind == PLACES then
		return false
	elseif kind == BUCKET then
		if counts then
			owe(i, p, c1, c2)
		end
		return counts
	elseif kind == FIXED and not fitted then
		if now >= A[i] + pa[p] then
			return false -- banned already
		elseif not counts and pc[p] > 0 and B[i] <= pb[p] then
			B[i] = pb[p] + 1
			if pd[p] >= 2 then
				A[i] = now - pa[p] -- the ban begins now, and not when the window ends
			end
			dirty[i] = true
			return true
		end
	end
	if counts and kind == LOG then
		walks[i] = nil
		lists.record(i, L[i] or lists.load(i), KEYS[i], pa[p], pb[p], c1)
	elseif counts then
		B[i] = min(B[i] + c1, MOST)
		if kind == FIXED and not fitted and pd[p] >= 2 then
			A[i] = now - pa[p]
		end
		dirty[i] = true
	end
	return counts
end

-- wait returns when what is used of a bucket comes down to room, as more says that
-- its entries end, one by one. The requests of a run go on from where those before
-- them have looked, until the bucket changes: each looking on its own could hold up
-- the server for seconds.
local function wait(i, used, room, more)
	local w = walks[i] or {n = 0, rest = {[0] = used}, ends = {[0] = 0}}
	walks[i] = w
	while w.rest[w.n] > room do
		local ends, cost = more(w)
		if not ends then
			break
		end
		w.n = w.n + 1
		w.rest[w.n], w.ends[w.n] = w.rest[w.n - 1] - cost, ends
	end
	local low, high = 0, w.n
	while low < high do
		local mid = floor((low + high) / 2)
		if w.rest[mid] <= room then
			high = mid
		else
			low = mid + 1
		end
	end
	return w.ends[low]
end

-- find describes a bucket whose state the caller does not get: whether the cost
-- fitted, what is used with extra taken, when it is as good as new, and when cost
-- fits.
local findings = {}
local function find(i, p, fitted, cost, extra)
	local used, reset, retry = 0, 0, 0
	if kinds[p] == LOG then
		local log, key, period = L[i] or lists.load(i), KEYS[i], pa[p]
		local expired
		expired, used = lists.live(log, key, period)
		if extra > 0 then
			reset = max(now, log.n > 0 and log.newest or 0) + period
		elseif expired < log.n then
			reset = log.newest + period
		end
		if not fitted and cost <= pb[p] then
			retry = wait(i, used, pb[p] - cost, function(w)
				w.at = (w.at or expired) + 1
				if w.at <= log.n then
					local moment, c = lists.entry(log, key, w.at)
					return moment + period, c
				end
			end)
		end
	else
		local members, freed = held.expired(i)
		local moment = held.load(i).moment
		used = held.load(i).used - freed
		if held.last(i) > moment then
			reset = held.last(i)
		end
		if extra > 0 then
			reset = max(reset, moment + pa[p])
		end
		if not fitted and cost <= pb[p] then
			retry = wait(i, used, pb[p] - cost, function(w)
				if not w.some or w.at > #w.some then
					w.next = w.next or #members
					w.some, w.at = call('ZRANGE', KEYS[i], w.next, w.next + 31, 'WITHSCORES'), 1
					w.next = w.next + 32
				end
				local member, ends = w.some[w.at], w.some[w.at + 1]
				w.at = w.at + 2
				if member then
					return tonumber(ends), held.cost(i, member)
				end
			end)
		end
	end
	local f = #findings
	findings[f + 1], findings[f + 2], findings[f + 3], findings[f + 4] = fitted and 1 or 0, used + extra, reset, retry
end

-- refund gives back c1. Of windows c2 is when that was taken, if it may have been in
-- one that has ended: what came since would be forgotten for it.
local function refund(i, p, c1, c2)
	local kind = kinds[p]
	walks[i] = nil
	if c2 > 0 and (kind == FIXED and c2 < A[i] or kind == SLIDING and floor(c2 / pa[p]) < A[i] or kind == LOG and c2 <= now - pa[p]) then
		return
	elseif kind == BUCKET then
		if A[i] >= TOP then
			return -- it would be lost in the rounding, or more than it would
		end
		local u, f = A[i] - c1, B[i] - c2
		if f < 0 then
			u, f = u - 1, f + pa[p]
		end
		if u < 0 then
			u, f = 0, 0
		end
		A[i], B[i] = u, f
	elseif kind == FIXED or kind == SLIDING then
		if B[i] == 0 or kind == FIXED and pc[p] > 0 and B[i] > pb[p] then
			return -- there is nothing to give back, or a ban, which is not lifted
		end
		B[i] = max(0, B[i] - c1)
		if kind == FIXED and B[i] == 0 then
			-- No window is open; the next begins when something is taken.
			A[i] = opens[p]
		end
	elseif kind == LOG then
		lists.refund(i, L[i] or lists.load(i), KEYS[i], pa[p], c1)
	end
	dirty[i] = true
end

-- settle charges what was admitted while the server was away. With counts all of it is charged:
-- a bucket then owes the cost, and is full no sooner than owed microseconds from now. Otherwise
-- as much is charged as fits.
local function settle(i, p, c1, c2, owed, counts)
	if kinds[p] ~= BUCKET then
		if counts then
			refuse(i, p, c1, 0, true, true)
			return
		end
		local low, high = 0, min(c1, pb[p])
		while low < high do
			local mid = ceil((low + high) / 2)
			if fits(i, p, mid, 0) then
				low = mid
			else
				high = mid - 1
			end
		end
		if low > 0 then
			charge(i, p, low, 0)
		end
		return
	end
	if A[i] >= OWED then
		return
	end
	local u, f = A[i] + c1, B[i] + c2
	if f >= pa[p] then
		u, f = u + 1, f - pa[p]
	end
	if pd[p] ~= 1 and u < now + owed then
		u, f = now + owed, 0
	end
	local deep = (pd[p] == 1 and 0 or now) + pb[p]
	if not counts and (u > deep or u == deep and f > pc[p]) then
		u, f = deep, pc[p]
		if A[i] > u or A[i] == u and B[i] > f then
			return
		end
	end
	if u >= OWED then
		u, f = OWED, 0
	end
	A[i], B[i], dirty[i] = u, f, true
end

local function reset(i, p)
	local kind = kinds[p]
	walks[i] = nil
	A[i], B[i], C[i] = 0, 0, 0
	if kind == FIXED then
		A[i] = opens[p]
	elseif kind == SLIDING then
		A[i] = floor(now / pa[p])
	elseif kind == LOG then
		call('DEL', KEYS[i])
		L[i] = nil
		return
	elseif kind == PLACES then
		call('DEL', KEYS[i], second[i])
		H[i] = nil
		return
	end
	dirty[i] = true
end
