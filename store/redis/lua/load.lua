-- Decides a batch of requests over the buckets in KEYS, in the order in which
-- they arrived, at one moment of the server's clock. The arithmetic is that of
-- package limit; docs/ARCHITECTURE.md says which numbers are exact.
--
-- Times are microseconds since the Unix epoch. A number is at most 2^53, or it is
-- meant to be larger than everything it is compared with.
--
-- KEYS     one for each bucket, scalar kinds first, then one more for each bucket
--          of places in flight, in their order
-- ARGV[1]  numbers, as MessagePack: see batch.encode
-- ARGV[2]  the channel on which freed keys are told, or ''
-- ARGV[3]  from here on, strings that the numbers refer to
-- answer   {now, status, admitted, {state of each scalar bucket before}, findings}; status 0 =
--          decided, 1 = a state of another policy, 2 = too late, 3 = the windows of the calendar
--          that were sent are not those of now
local N = cmsgpack.unpack(ARGV[1])
local pack, unpack_ = struct.pack, struct.unpack
local call, floor, ceil, min, max = redis.call, math.floor, math.ceil, math.min, math.max

local BUCKET, FIXED, SLIDING, LOG, PLACES = 1, 2, 3, 4, 5
local TAKE, PEEK, REFUND, FINISH, RESET, SETTLE, ONCE = 1, 2, 3, 4, 5, 6, 7
local MOST = 2251799813685248 -- 2^51, where counts stop
local OWED = 9007199254740991 -- 2^53 - 1, where what is refused makes no more debt: in the year 2255

local now, void, back, hold, policies = N[1], N[2], N[3], N[4], N[5]
if now == 0 then
	local t = call('TIME')
	now = t[1] * 1000000 + t[2]
end
if void > 0 and now > void then
	return {now, 2}
end

-- The policies: five numbers each, and a string for the scalar kinds.
local at = 6
local kinds, pa, pb, pc, pd, tags = {}, {}, {}, {}, {}, {}
local opens, calendar = {}, {} -- of fixed windows: where the one of now begins
for p = 1, policies do
	kinds[p], pa[p], pb[p], pc[p], pd[p] = N[at], N[at + 1], N[at + 2], N[at + 3], N[at + 4]
	tags[p] = ARGV[2 + p]
	at = at + 5
	if kinds[p] == FIXED then
		if pd[p] == 4 then
			-- Of the calendar, whose windows differ in length: the sender knows where this one
			-- begins, in the place of a ban, and how long it is.
			calendar[p], opens[p], pc[p], pd[p] = true, pc[p], 0, 0
			if now < opens[p] or now >= opens[p] + pa[p] then
				return {now, 3}
			end
		else
			opens[p] = pd[p] % 2 == 1 and now or now - now % pa[p]
		end
	end
end

-- The buckets: the policy of each. A, B and C are their states.
local buckets, scalars, conversions = N[at], N[at + 1], N[at + 2]
at = at + 3
local first = at - 1
local raws = {}
if scalars <= 1000 then
	raws = scalars > 0 and call('MGET', unpack(KEYS, 1, scalars)) or raws
else
	-- Lua's stack takes some thousands of arguments only.
	for i = 1, scalars do
		raws[i] = call('GET', KEYS[i])
	end
end
at = at + buckets
-- Behind the policies' numbers are those of buckets out of which the step of the clock was
-- taken before.
local steps = {}
for i = 1, back > 0 and buckets or 0 do
	steps[i] = back
	if N[first + i] > policies then
		N[first + i], steps[i] = N[first + i] - policies, 0
	end
end
local A, B, C, dirty, second = {}, {}, {}, {}, {}
for c = 1, conversions do
	local i, from, to = N[at], N[at + 1], N[at + 2]
	if raws[i] == ARGV[from] then
		raws[i] = ARGV[to] ~= '' and ARGV[to]
		dirty[i] = true
	end
	at = at + 3
end

-- A state is whole numbers and the tag of the policy that wrote it. What has another
-- length, or other numbers, is nobody's.
local TOP = 9007199254740992 -- 2^53
local LATEST = 2 ^ 116 -- bounds the time at which a bucket is full: see latest in rule.go
local strange = false
local extra = buckets
for i = 1, buckets do
	local p = N[first + i]
	local kind = kinds[p]
	if kind == BUCKET then
		local v, tag = raws[i], nil
		A[i], B[i] = 0, 0
		if v and #v == 40 then
			A[i], B[i], tag = unpack_('<ddc24', v)
		end
		local a, b = A[i], B[i]
		if back > 0 and steps[i] > 0 and pd[p] ~= 1 and a < TOP and (a > now + pb[p] or a == now + pb[p] and b > pc[p]) then
			-- The server's clock was set back by that much: the bucket is empty, and owes
			-- what it did, but not the step. That is written, or it would stay empty.
			dirty[i] = true
			A[i] = a - back
			if A[i] < now + pb[p] then
				A[i], B[i] = now + pb[p], pc[p]
			end
		end
		strange = strange or v and (tag ~= tags[p] or not (a >= 0 and b >= 0 and a < LATEST and b < TOP and a % 1 == 0 and b % 1 == 0))
	elseif kind == FIXED then
		local v, start, count, tag = raws[i], 0, 0, nil
		if v and #v == 41 then
			start, count, tag = unpack_('<ddc25', v)
		end
		strange = strange or v and (tag ~= tags[p] or not (start >= 0 and count >= 0 and start < TOP and count < TOP and start % 1 == 0 and count % 1 == 0))
		if back > 0 and steps[i] > 0 and start > now then
			start = opens[p]
			dirty[i] = true
		end
		local ends = start + pa[p]
		if pc[p] > 0 and count > pb[p] then
			ends = ends + pc[p]
		end
		if count <= 0 or now >= ends or calendar[p] and start < opens[p] then
			count, start = 0, opens[p]
		end
		A[i], B[i] = start, count
	elseif kind == SLIDING then
		local v, index, cur, prev, tag = raws[i], 0, 0, 0, nil
		if v and #v == 32 then
			index, cur, prev, tag = unpack_('<dddc8', v)
		end
		strange = strange or v and (tag ~= tags[p] or not (index >= 0 and cur >= 0 and prev >= 0 and index < TOP and cur < TOP and prev < TOP and index % 1 == 0 and cur % 1 == 0 and prev % 1 == 0))
		local here = floor(now / pa[p])
		if back > 0 and steps[i] > 0 and here < index then
			index = here
			dirty[i] = true
		elseif here == index + 1 then
			index, cur, prev = here, 0, cur
		elseif here > index then
			index, cur, prev = here, 0, 0
		end
		A[i], B[i], C[i] = index, cur, prev
	elseif kind == PLACES then
		extra = extra + 1
		second[i] = KEYS[extra]
		-- What is not ours fails here: later others would have been charged.
		-- Alone it fails before it is, and can be reset.
		if buckets > 1 then
			call('ZCARD', KEYS[i])
			call('HGET', second[i], 'u')
		end
	elseif kind == LOG and buckets > 1 then
		call('LLEN', KEYS[i])
	end
end
if strange then
	-- Another policy wrote one of them: the caller converts it and asks again.
	return {now, 1, 0, raws}
end

-- over says whether a*b > c*d; all are at most 2^52. Products of doubles are off
-- by 2^-53 of themselves at most, so only what is nearly equal needs the digits.
local function over(a, b, c, d)
	local x, y = a * b, c * d
	local gap = x - y
	local doubt = x * 2 ^ -50
	if gap > doubt then
		return true
	elseif gap < -doubt then
		return false
	end
	local W = 67108864 -- 2^26
	local function digits(m, n)
		local m1, n1 = floor(m / W), floor(n / W)
		local m0, n0 = m - m1 * W, n - n1 * W
		local low = m0 * n0
		local mid = m1 * n0 + m0 * n1
		local carry = floor(low / W)
		low = low - carry * W
		mid = mid + carry
		carry = floor(mid / W)
		return m1 * n1 + carry, mid - carry * W, low
	end
	local x2, x1, x0 = digits(a, b)
	local y2, y1, y0 = digits(c, d)
	if x2 ~= y2 then
		return x2 > y2
	elseif x1 ~= y1 then
		return x1 > y1
	end
	return x0 > y0
end
