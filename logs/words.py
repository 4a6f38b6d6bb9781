"""The words of a block of lines, as a Bloom filter: whether a block may have a word.

A *word* is a run of ASCII letters, digits and underscores, in lower case. The filter never denies a
word that is there, and affirms about one in a hundred that is not.
"""

import hashlib
import re
import struct
from collections.abc import Iterable

import numpy as np

HASHES = 7
BITS_PER_WORD = 10
_WORD = re.compile(r"[A-Za-z0-9_]+")
_PAIR = struct.Struct("<II")


def words_in(text: str) -> set[str]:
    """Return the words of a text."""
    return set(_WORD.findall(text.lower()))


def word_filter(words: Iterable[str]) -> bytes:
    """Return the filter of these words."""
    pairs = np.array([_pair(word) for word in words], dtype=np.uint64).reshape(-1, 2)
    bits = np.zeros(max(64, -(-len(pairs) * BITS_PER_WORD // 8) * 8), dtype=np.bool_)
    for number in range(HASHES):
        bits[(pairs[:, 0] + np.uint64(number) * pairs[:, 1]) % np.uint64(len(bits))] = True
    return np.packbits(bits).tobytes()


def may_contain(content: bytes, words: Iterable[str]) -> bool:
    """Return whether a filter affirms all of these words."""
    size = len(content) * 8
    for word in words:
        first, step = _pair(word)
        for number in range(HASHES):
            byte, bit = divmod((first + number * step) % size, 8)
            if not content[byte] & (0x80 >> bit):
                return False
    return True


def _pair(word: str) -> tuple[int, int]:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    first, step = _PAIR.unpack(digest)
    return first, step | 1
