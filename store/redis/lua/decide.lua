-- The requests. Each has its kind, how often it is repeated, how many charges it
-- has, and for each the bucket (four times, plus 2 if it counts though it is refused,
-- plus 1 for a shadow) and two numbers: the cost of a bucket; of a fixed window the cost
-- and, plus 1, the count that it is to be measured by, 0 for the policy's. ONCE is TAKE
-- whose last charge has to fit, or nothing at all is charged.
local admitted = 0
local freed = {}
local length = #N
while at <= length do
	local what, again, charges = N[at], N[at + 1], N[at + 2]
	at = at + 3
	if what == TAKE and charges == 1 then
		local i, c1, c2 = N[at], N[at + 1], N[at + 2]
		local shadow, counts = i % 2 == 1, i % 4 >= 2
		i = floor(i / 4)
		local p = N[first + i]
		local kind = kinds[p]
		if kind == BUCKET then
			local taken = run(i, p, c1, c2, again)
			for _ = taken + 1, counts and again or 0 do
				owe(i, p, c1, c2)
			end
			admitted = admitted + (shadow and again or taken)
		else
			for n = 1, again do
				local fitted = fits(i, p, c1, c2)
				local changed = fitted
				if c1 > 0 then
					if fitted then
						charge(i, p, c1, c2)
					else
						changed = refuse(i, p, c1, c2, false, counts)
					end
				end
				if fitted or shadow then
					admitted = admitted + 1
				end
				if i > scalars then
					find(i, p, fitted, c1, 0)
				elseif not changed then
					-- Whatever refused this one refuses the rest of the run.
					if shadow then
						admitted = admitted + again - n
					end
					break
				end
			end
		end
	elseif what == TAKE or what == PEEK or what == ONCE then
		for n = 1, again do
			local allowed, fitted = true, {}
			for c = 0, charges - 1 do
				local i = N[at + 3 * c]
				local b = floor(i / 4)
				fitted[c] = fits(b, N[first + b], N[at + 3 * c + 1], N[at + 3 * c + 2])
				allowed = allowed and (fitted[c] or i % 2 == 1)
			end
			if allowed then
				admitted = admitted + 1
			end
			local charging = what == TAKE or what == ONCE and fitted[charges - 1]
			for c = 0, charges - 1 do
				local w, c1, c2 = N[at + 3 * c], N[at + 3 * c + 1], N[at + 3 * c + 2]
				local i = floor(w / 4)
				local p = N[first + i]
				local zero = c1 == 0 and (c2 == 0 or kinds[p] ~= BUCKET)
				if charging and not zero then
					if allowed and fitted[c] then
						charge(i, p, c1, c2)
					else
						refuse(i, p, c1, c2, fitted[c], w % 4 >= 2)
					end
				end
				if i > scalars then
					find(i, p, fitted[c], c1, what == PEEK and allowed and fitted[c] and c1 or 0)
				end
			end
		end
	else
		for c = 0, charges - 1 do
			local w, c1, c2 = N[at + 3 * c], N[at + 3 * c + 1], N[at + 3 * c + 2]
			local i = floor(w / 4)
			local p = N[first + i]
			if what == REFUND then
				refund(i, p, c1, c2)
				freed[i] = true
			elseif what == SETTLE then
				settle(i, p, c1, c2, again, w % 4 >= 2)
			elseif what == FINISH then
				if kinds[p] == PLACES then
					walks[i] = nil
					if w % 4 >= 2 then
						held.keep(i, p, ARGV[c2])
					else
						held.leave(i, ARGV[c2])
					end
				end
			else
				reset(i, p)
				freed[i] = true
			end
		end
	end
	at = at + 3 * charges
end

-- What has changed is written, to live until the key is as good as new: in whole
-- seconds, which many keys share, since to write a number costs as much as a key.
local texts = {}
for i = 1, buckets do
	if dirty[i] then
		local p = N[first + i]
		local kind = kinds[p]
		local value, ends
		if kind == BUCKET then
			ends = A[i] + (B[i] > 0 and 1 or 0)
			value = pack('<ddc0', A[i], B[i], tags[p])
			if pd[p] == 1 then
				ends = A[i] > 0 and math.huge or 0
			elseif ends >= TOP then
				ends = math.huge -- centuries, and more than an expiry can be
			end
		elseif kind == FIXED then
			ends = A[i] + pa[p]
			if pc[p] > 0 and B[i] > pb[p] then
				ends = ends + pc[p]
			end
			value = pack('<ddc0', A[i], B[i], tags[p])
			if B[i] <= 0 then
				ends = 0
			end
		elseif kind == SLIDING then
			ends = B[i] > 0 and (A[i] + 2) * pa[p] or C[i] > 0 and (A[i] + 1) * pa[p] or 0
			value = pack('<dddc0', A[i], B[i], C[i], tags[p])
		elseif kind == LOG then
			if L[i] then
				lists.save(i, L[i], pa[p])
			end
		elseif H[i] then
			held.save(i)
		end
		if value then
			if ends == math.huge then
				call('SET', KEYS[i], value)
			else
				local ttl = ends > 0 and ceil((ends - now) / 1000000) + ceil(hold / 1000) or 0
				if ttl > 0 then
					local text = texts[ttl]
					if not text then
						text = string.format('%d', ttl)
						texts[ttl] = text
					end
					call('SET', KEYS[i], value, 'EX', text)
				else
					call('DEL', KEYS[i])
				end
			end
		end
	end
end
if ARGV[2] ~= '' then
	for i in pairs(freed) do
		redis.pcall('PUBLISH', ARGV[2], string.format('%.0f ', now) .. KEYS[i])
	end
end

return {now, 0, admitted, raws, findings}
