-- Shares of the tenants of one bucket: the arithmetic of internal/tenants, to which a test holds it.
-- KEYS: a sorted set of the tenants without a guarantee that have taken tokens, by the virtual time at which all
-- is given back; a hash of everything else. ARGV: time in microseconds or 0, what to do, tokens per microsecond,
-- burst, cost, tenant, weight, whether it takes what does not fit, hold, most tenants, and of each tenant with a
-- guarantee its name, rate and weight.
local call, set, hash = redis.call, KEYS[1], KEYS[2]
local now, verb, rate, burst, cost, me, mine = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local force, hold, most = ARGV[8] == '1', tonumber(ARGV[9]), tonumber(ARGV[10])
if now == 0 then
	local t = call('TIME')
	now = t[1] * 1000000 + t[2]
end
local slack = 1e-6
local function text(x) return string.format('%.17g', x) end
local known = call('HMGET', hash, 't', 'v', 'T', 'W', 'l', 'la', 'o', 'c')
local at, virtual, taken, weight = tonumber(known[1] or now), tonumber(known[2] or 0), tonumber(known[3] or 0), tonumber(known[4] or 0)
local last, lastAt, otherwise = known[5], tonumber(known[6] or 0), known[7] and tonumber(known[7])

local floors, place, names = {}, {}, {}
for i = 11, #ARGV, 3 do
	local name = ARGV[i]
	local is = call('HMGET', hash, 'g' .. name, 'a' .. name)
	floors[#floors + 1] = {name = name, floor = tonumber(ARGV[i + 1]), weight = tonumber(ARGV[i + 2]), taken = tonumber(is[1] or 0), asked = is[2] and tonumber(is[2]), rate = 0}
	place[name] = #floors
	names[#names + 1] = #name .. ':' .. name
end

local function first() -- the tenant without a guarantee to which all is given back first
	local f = call('ZRANGE', set, 0, 0, 'WITHSCORES')
	if f[1] then return f[1], tonumber(f[2]) end
end
local function weightOf(name) return tonumber(call('HGET', hash, 'w' .. name) or 1) end
local function remove(name)
	weight = weight - weightOf(name)
	call('ZREM', set, name)
	call('HDEL', hash, 'w' .. name)
end
local function settle()
	if call('ZCARD', set) > 0 then return end
	taken, weight, virtual = 0, 0, 0
	for _, f in ipairs(floors) do taken = taken + f.taken end
end
local function level(more)
	local r, w = rate, weight + more
	for _, f in ipairs(floors) do
		f.rate = 0
		if f.taken > 0 then w = w + f.weight end
	end
	local again = true
	while again do
		again = false
		for _, f in ipairs(floors) do
			if f.taken > 0 and f.rate == 0 and f.floor * w > r * f.weight then
				f.rate = f.floor
				r, w = r - f.floor, w - f.weight
				again = true
			end
		end
	end
	local l = 0
	if w > 0 and r > 0 then l = r / w end
	for _, f in ipairs(floors) do
		if f.taken > 0 and f.rate == 0 then f.rate = l * f.weight end
	end
	return l
end
local function owing()
	for _, f in ipairs(floors) do
		if f.taken > 0 then return true end
	end
	return call('ZCARD', set) > 0
end
local function takenBy(name)
	if place[name] then return floors[place[name]].taken end
	local finish = call('ZSCORE', set, name)
	if not finish then return 0 end
	return math.max((tonumber(finish) - virtual) * weightOf(name), 0)
end
local function add(name, w, amount)
	local own = takenBy(name)
	amount = math.max(amount, -own)
	if amount == 0 then return end
	taken = math.max(taken + amount, 0)
	own = own + amount
	if place[name] then
		floors[place[name]].taken = own
		settle()
		return
	end
	local there = call('ZSCORE', set, name)
	if there and own <= 0 then
		remove(name)
		settle()
		return
	end
	if there then weight = weight + w - weightOf(name) else weight = weight + w end
	call('ZADD', set, text(virtual + own / w), name)
	if w == 1 then call('HDEL', hash, 'w' .. name) else call('HSET', hash, 'w' .. name, text(w)) end
end

local left = now - at
if left > 0 then at = now end
while left > 0 and rate > 0 and owing() do
	local l = level(0)
	local step, which, name = left, 0, nil
	local head, finish = first()
	if head and l > 0 then
		local d = (finish - virtual) / l
		if d <= step then step, which, name = math.max(d, 0), -1, head end
	end
	for i, f in ipairs(floors) do
		if f.taken > 0 and f.rate > 0 then
			local d = f.taken / f.rate
			if d < step then step, which = d, i end
		end
	end
	virtual = virtual + l * step
	for i, f in ipairs(floors) do
		if f.taken > 0 then
			f.taken = f.taken - f.rate * step
			if i == which or f.taken < 0 then f.taken = 0 end
		end
	end
	if which == -1 then remove(name) end
	left = left - step
	taken = math.max(taken - rate * step, 0)
	settle()
end

-- Who has a guarantee has changed: what was taken stays taken. A tenant that has none any more weighs 1 until it
-- takes again.
local config = table.concat(names)
if (known[8] or '') ~= config then
	local former, from = known[8] or '', 1
	while from <= #former do
		local _, colon, size = string.find(former, '^(%d+):', from)
		from = colon + 1 + size
		local name = string.sub(former, colon + 1, from - 1)
		if not place[name] then
			local own = tonumber(call('HGET', hash, 'g' .. name) or 0)
			call('HDEL', hash, 'g' .. name, 'a' .. name)
			taken = math.max(taken - own, 0)
			if own > 0 then add(name, name == me and mine or 1, own) end
		end
	end
	for _, f in ipairs(floors) do
		if call('ZSCORE', set, f.name) then
			local w = weightOf(f.name)
			f.taken = math.max((tonumber(call('ZSCORE', set, f.name)) - virtual) * w, 0)
			remove(f.name)
		end
	end
	settle()
end

if not place[me] and not call('ZSCORE', set, me) and call('ZCARD', set) >= most then me, mine = '', 1 end

local function stand()
	local s = {own = takenBy(me), free = burst - taken, grows = rate, part = 0, left = 0}
	local more = 0
	if s.own <= 0 then more = mine end
	s.rate = level(more) * mine
	s.room = s.free
	for i, f in ipairs(floors) do
		local part = math.max(f.floor / rate * burst / 2, 1)
		if i == place[me] then
			s.part, s.left, s.rate = part, part - s.own, math.max(s.rate, f.floor)
		elseif f.asked and at - f.asked <= hold and part - f.taken > 0 then
			s.room = s.room - (part - f.taken)
			s.grows = s.grows - f.rate
		end
	end
	local other = otherwise
	if last ~= me then other = last and lastAt end
	s.alone = not (other and at - other <= hold) and taken - s.own <= slack
	return s
end
local function fits(s)
	if cost <= s.left + slack and cost <= s.free + slack then return true end
	if cost > s.room + slack then return false end
	return s.own <= slack or s.alone or s.own + 2 * cost <= s.room + slack
end
local function after(amount, r)
	if amount <= 0 then return 0 end
	return amount / math.max(r, rate / 1000)
end

local answer
if verb == 'return' then
	add(me, mine, -cost)
	answer = {1}
else
	if verb == 'take' then
		if place[me] then floors[place[me]].asked = at end
		if last and last ~= me then otherwise = lastAt end
		last, lastAt = me, at
	end
	local s = stand()
	local ok = fits(s)
	if verb == 'take' and (ok or force) then
		add(me, mine, cost)
		s = stand()
	end
	local remains = math.min(s.left, s.free)
	if s.own <= slack or s.alone then remains = math.max(remains, s.room) else remains = math.max(remains, (s.room - s.own) / 2) end
	local wait, reason = 0, 0
	if not ok then
		wait = after(cost - s.room, s.grows)
		if not s.alone then wait = math.max(wait, math.min(after(s.own, s.rate), after(s.own + 2 * cost - s.room, s.rate + math.max(s.grows, 0)))) end
		if cost <= s.part then wait = math.min(wait, math.max(after(cost - s.left, s.rate), after(cost - s.free, rate))) end
		reason = 1
		if cost <= s.free + slack then reason = 2 end
	end
	local owed = call('ZCARD', set)
	for _, f in ipairs(floors) do
		if f.taken > 0 then owed = owed + 1 end
	end
	answer = {ok and '1' or '0', text(reason), text(math.max(math.floor(remains + slack), 0)), text(math.ceil(math.min(wait + 0.25, 1e15))), text(s.rate), text(owed), text(taken)}
end

local write = {'HSET', hash, 't', text(at), 'v', text(virtual), 'T', text(taken), 'W', text(weight), 'c', config}
local function put(k, v)
	write[#write + 1] = k
	write[#write + 1] = v
end
if last then
	put('l', last)
	put('la', text(lastAt))
end
if otherwise then put('o', text(otherwise)) end
for _, f in ipairs(floors) do
	put('g' .. f.name, text(f.taken))
	if f.asked then put('a' .. f.name, text(f.asked)) end
end
call(unpack(write))
local lives = 3.2e10 -- a year
if rate > 0 then lives = math.ceil(math.min(hold / 1000 + 1000 + taken / rate / 1000, lives)) end
call('PEXPIRE', set, lives)
call('PEXPIRE', hash, lives)
return answer
