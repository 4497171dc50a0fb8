"""Reaches most of the interpreter; prints what must not depend on being traced."""
import collections, decimal, fractions, functools, hashlib, heapq, itertools, json, random, re
import string, struct, threading, unicodedata, unittest, zlib


class Shape:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size

    def __lt__(self, other):
        return self.size < other.size

    @property
    def area(self):
        return self.size * self.size


class Deep(Exception):
    pass


def dive(n):
    if n == 0:
        raise Deep("bottom")
    try:
        return dive(n - 1)
    finally:
        counts["left"] += 1


counts = collections.Counter()
rng = random.Random(42)
for _ in range(50):
    try:
        dive(200)
    except Deep as bottom:
        counts[str(bottom)] += 1
print(sorted(counts.items()))

data = [{"id": i, "name": "".join(rng.choices(string.ascii_letters, k=8)), "v": rng.random()} for i in range(3000)]
text = json.dumps(data, sort_keys=True)
assert json.loads(text) == data
print(len(text), hashlib.sha256(text.encode()).hexdigest(), zlib.crc32(text.encode()))
print(len(zlib.compress(text.encode(), 6)), zlib.decompress(zlib.compress(text.encode())) == text.encode())

words = re.findall(r'"name": "([A-Z]\w+?[a-m])', text)
print(len(words), words[:20], re.sub(r"(\w)(\w)", r"\2\1", " ".join(words[:10])))
print(sorted(data, key=lambda row: (row["name"].lower(), -row["id"]))[:5])

shapes = [Shape(rng.randrange(1000)) for _ in range(5000)]
heapq.heapify(shapes)
print([heapq.heappop(shapes).area for _ in range(30)])


@functools.lru_cache(maxsize=None)
def ways(total, coins):
    if total == 0:
        return 1
    if total < 0 or not coins:
        return 0
    return ways(total - coins[0], coins) + ways(total, coins[1:])


print(ways(500, (200, 100, 50, 20, 10, 5, 2, 1)))
print(sum(fractions.Fraction(1, n) for n in range(1, 200)))
with decimal.localcontext() as context:
    context.prec = 80
    print(decimal.Decimal(2).sqrt(), decimal.Decimal(1) / 7)
print(pow(3, 5000, 10**40 + 7), (1 << 3000) % (10**50 + 1), [hex(2**n // 3) for n in (64, 128, 256)])

print(struct.unpack(">IhQ", struct.pack(">IhQ", 7, -2, 1 << 60)), bytes(range(256))[::17].hex())
print(unicodedata.normalize("NFD", "àéîöç").encode(), "ΑΒΓ".lower(), "straße".upper())
print(["{:>10.3f}|{:<8}|{:^+9,d}".format(x / 7, str(x), x * 12345) for x in range(5)])


def numbers():
    total = 0
    while True:
        got = yield total
        total += got or 1


generator = numbers()
next(generator)
print([generator.send(n) for n in range(20)], list(itertools.islice(itertools.permutations("abcd"), 5)))
print({key: len(list(group)) for key, group in itertools.groupby(sorted(words), key=lambda w: w[0])})

total, lock = [0], threading.Lock()


def add():
    for _ in range(2000):
        with lock:
            total[0] += 1


threads = [threading.Thread(target=add) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(total)


class Laws(unittest.TestCase):
    def test_sets(self):
        for _ in range(200):
            a, b = ({rng.randrange(50) for _ in range(20)} for _ in range(2))
            self.assertEqual(len(a | b) + len(a & b), len(a) + len(b))
            self.assertEqual((a - b) | (a & b), a)

    def test_text(self):
        for _ in range(200):
            word = "".join(rng.choices("abc", k=12))
            self.assertEqual(word[::-1][::-1], word)
            self.assertEqual("b".join(word.split("b")), word)

    def test_errors(self):
        with self.assertRaises(ZeroDivisionError):
            1 // 0
        with self.assertRaisesRegex(KeyError, "nothing"):
            {}["nothing"]


result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(Laws).run(result)
print(result.testsRun, result.wasSuccessful(), len(compile("x = [i for i in range(9)]\n" * 200, "s", "exec").co_code))
