-- Strings, tables, closures, coroutines, numbers, metatables; prints checksums.
local rounds = tonumber(arg[1])
local function mix(h, s)
  for i = 1, #s do h = (h * 31 + s:byte(i)) % 4294967291 end
  return h
end
local function sieve(n)
  local composite, sum = {}, 0
  for i = 2, n do
    if not composite[i] then
      sum = sum + i
      for j = i * i, n, i do composite[j] = true end
    end
  end
  return sum
end
local function permutations(list, n, yield)
  if n == 0 then yield(table.concat(list, ",")) return end
  for i = 1, n do
    list[i], list[n] = list[n], list[i]
    permutations(list, n - 1, yield)
    list[i], list[n] = list[n], list[i]
  end
end
local Vector = {}
Vector.__index = Vector
Vector.__add = function(a, b) return setmetatable({ x = a.x + b.x, y = a.y + b.y }, Vector) end
Vector.__eq = function(a, b) return a.x == b.x and a.y == b.y end
Vector.__lt = function(a, b) return a.x < b.x end
Vector.__concat = function(a, b) return tostring(a) .. tostring(b) end
Vector.__tostring = function(a) return string.format("(%g, %.3f)", a.x, a.y) end
Vector.__call = function(self, k) return self.x * k end
for r = 1, rounds do
  local h = r
  print("sieve", sieve(30000 + r))
  local walk = coroutine.wrap(function() permutations({ 1, 2, 3, 4, 5, 6, 7 }, 7, coroutine.yield) end)
  for text in walk do h = mix(h, text) end
  print("permutations", h)
  local v = setmetatable({ x = r, y = 0.5 }, Vector)
  for i = 1, 20000 do v = v + setmetatable({ x = i % 7, y = 1 / i }, Vector) end
  print("vector", v .. v, v(2), v < v, v == v)
  local words = {}
  for i = 1, 5000 do words[i] = string.format("%05d-%x-%q", (i * 7919 + r) % 10007, i * 2654435761 % 4294967296, "w" .. i) end
  table.sort(words, function(a, b) return a > b end)
  print("sort", mix(0, table.concat(words, ";")))
  local text = table.concat(words, " ")
  local counted = 0
  for a, b in text:gmatch("(%d+)%-(%x+)") do counted = counted + #a * #b end
  print("gmatch", counted, (text:gsub("%d", function(d) return 9 - d end)):sub(1, 60))
  print("pcall", pcall(error, { code = r }), select("#", pcall(error)), (pcall(string.rep, "x", -1)))
  local f, fs = 0.1, {}
  for i = 1, 30000 do
    f = math.sin(f * i) + math.sqrt(i) // 1 - f ^ 2 % 3 + math.fmod(i, 7) * (i & 5 | 2 ~ i >> 3)
    if i % 3000 == 0 then fs[#fs + 1] = string.format("%.6e", f) end
  end
  print("float", table.concat(fs, " "))
  print("pack", (string.pack("<i4 z s2 d", r, "abc", "defg", 1.5):gsub(".", function(c) return string.format("%02x", c:byte()) end)))
  print("load", load("local a, b = ... ; local t = {a, b, n = a + b} ; for i = 1, 10 do t[i] = i << 2 end ; goto done ; ::done:: return #t, t.n, t[7]")(r, 2))
  local weak = setmetatable({}, { __mode = "k" })
  for i = 1, 2000 do weak[{}] = i end
  collectgarbage()
  print("weak", next(weak))
end
