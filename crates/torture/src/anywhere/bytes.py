# Compresses, decompresses and digests data that is the same in each run; prints lengths and digests.
import bz2
import hashlib
import hmac
import lzma
import sys
import zlib

rounds = int(sys.argv[1])


def data(n, seed):
    out, x = bytearray(), seed
    while len(out) < n:
        x = (x * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        word = (x >> 33).to_bytes(4, "little")
        out += word * (1 + (x >> 20) % 5) if x & 512 else b"the same words again, " * (1 + (x >> 10) % 3)
    return bytes(out[:n])


def say(*what):
    print(*what, flush=True)


say("ready")
for r in range(rounds):
    plain = data(200_000 + 7 * r, r + 1)
    say("crc", zlib.crc32(plain), zlib.adler32(plain))
    for level in (1, 6, 9):
        for strategy in (0, 1, 2, 3, 4):
            c = zlib.compressobj(level, zlib.DEFLATED, 15, 8, strategy)
            packed = c.compress(plain) + c.flush()
            assert zlib.decompress(packed) == plain
            say("zlib", level, strategy, len(packed), hashlib.md5(packed).hexdigest())
    for preset in (0, 3, 6):
        packed = lzma.compress(plain[:120_000], preset=preset, check=lzma.CHECK_SHA256)
        assert lzma.decompress(packed) == plain[:120_000]
        say("xz", preset, len(packed), zlib.crc32(packed))
    packed = bz2.compress(plain)
    assert bz2.decompress(packed) == plain
    say("bz2", len(packed), zlib.crc32(packed))
    for name in sorted(hashlib.algorithms_guaranteed):
        h = hashlib.new(name)
        for i in range(0, len(plain), 30_011):
            h.update(plain[i : i + 30_011])
        say(name, h.hexdigest(64) if name.startswith("shake") else h.hexdigest())
    say("hmac", hmac.new(plain[:33], plain, "sha384").hexdigest())
    say("pbkdf2", hashlib.pbkdf2_hmac("sha256", plain[:9], plain[9:25], 2000).hex())
    say("scrypt", hashlib.scrypt(plain[:9], salt=plain[9:25], n=256, r=8, p=1).hex())
