"""Routing version 1 once more: slow, plain, with nothing of the package and no library; and the vectors made by it.

python -m tests.client.routing_reference        writes routing_vectors.json anew
"""

from __future__ import annotations

import json
import random
from pathlib import Path

VECTORS = Path(__file__).parent / "routing_vectors.json"
COUNTS = [1, 2, 3, 7, 10, 4096]
C1, C2 = 0xCC9E2D51, 0x1B873593
WORD = 0xFFFFFFFF


def rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> (32 - by))) & WORD


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3, the 32-bit variant for x86, unsigned."""
    state = seed
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        block = int.from_bytes(data[i : i + 4], "little")
        state = (rotate(state ^ (rotate(block * C1 & WORD, 15) * C2 & WORD), 13) * 5 + 0xE6546B64) & WORD
    tail = int.from_bytes(data[whole:], "little")
    state ^= rotate(tail * C1 & WORD, 15) * C2 & WORD
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & WORD
    return state ^ state >> 16


def shard_of(key: str, count: int) -> int:
    """The shard of a key, by drawing hashes until one is in the fair range."""
    attempt = 0
    while True:
        seed = 0 if attempt == 0 else murmur3(attempt.to_bytes(4, "little"), 0)
        drawn = murmur3(key.encode(), seed)
        if drawn < 2**32 - 2**32 % count:
            return drawn % count
        attempt += 1


def key_hashing_to(wanted: int, chance: random.Random) -> str:
    """An eight-character key with a given hash (seed 0): murmur3 of the last block can be turned round."""
    state = wanted ^ wanted >> 16
    state = state * pow(0xC2B2AE35, -1, 2**32) & WORD
    state = state ^ state >> 13 ^ state >> 26
    state = state * pow(0x85EBCA6B, -1, 2**32) & WORD
    state = (state ^ state >> 16) ^ 8
    before_last = rotate((state - 0xE6546B64) * pow(5, -1, 2**32) & WORD, 32 - 13)
    while True:
        head = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(4))
        block = int.from_bytes(head.encode(), "little")
        first = (rotate(rotate(block * C1 & WORD, 15) * C2 & WORD, 13) * 5 + 0xE6546B64) & WORD
        mixed = (before_last ^ first) * pow(C2, -1, 2**32) & WORD
        tail = (rotate(mixed, 32 - 15) * pow(C1, -1, 2**32) & WORD).to_bytes(4, "little")
        if all(0x21 <= byte < 0x7F for byte in tail):
            return head + tail.decode()


def keys() -> list[str]:
    """5,000 keys: plain, empty, other scripts, long, top bit set, and in the zone that is hashed again."""
    chance = random.Random(1)
    special = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "ö",
        "ä",
        "ü",
        "ß",
        "Grüße",
        "日本語",
        "데이터",
        "🙂",
        "👩‍👩‍👧",
        "x" * 65_536,
        "ü" * 32_768,
        " ",
        "\x7f",
        "a\nb",
    ]
    zone = [key_hashing_to(2**32 - 1 - i, chance) for n in COUNTS for i in range(2**32 % n)]
    top = [key_hashing_to(2**31 + chance.randrange(2**31 - 64), chance) for _ in range(200)]
    numbered = [f"customer-{i}" for i in range(2_500)]
    alphabet = "abcdefghijklmnopqrstuvwxyzäöüßéñøλжщ한글字🙂🚀0123456789:-_/"
    rest = 5_000 - len(special) - len(zone) - len(top) - len(numbered)
    mixed = ["".join(chance.choice(alphabet) for _ in range(chance.randint(1, 24))) for _ in range(rest)]
    return special + zone + top + numbered + mixed


def vectors() -> dict[str, object]:
    """What the file holds: keys (a long one as `[text, times]`) and, per shard count, the shard of each key."""
    all_keys = keys()
    written: list[object] = [[k[0], len(k)] if len(k) > 1_000 else k for k in all_keys]
    return {
        "about": "Routing version 1: expected[n][i] is the shard of keys[i] among n. A key [text, times] is the text repeated.",
        "keys": written,
        "expected": {str(n): [shard_of(k, n) for k in all_keys] for n in COUNTS},
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), ensure_ascii=False, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{VECTORS}: {VECTORS.stat().st_size} bytes")
