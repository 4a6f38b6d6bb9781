"""The arithmetic of challenges: memory full of words of a seed, and walks over it.

A *block* of words is a chain: each word follows from the one before by some *rounds* of mixing, so
that a word that is not in memory costs the rounds of half a block. A *walk* reads words wherever
the last one sends it; its end is a *leaf*. The leaves are the bottom of a Merkle tree, whose *root*
commits to all of them, and chooses which are *opened*: whoever did not compute all leaves doesn't
know which will be asked for. To check an opened leaf, its walk is computed without the memory.

This module runs on the portal and in the container of a challenge: it has the standard library
alone. The GPU's kernels (`jobqueue.executors.challenge.kernels`) compute the same.

Source: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014);
Fiat and Shamir, "How to prove yourself", 1986.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

BLOCK_WORDS = 512
WORD_BYTES = 8
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(word: int) -> int:
    """Return the finalizer of splitmix64."""
    word = (word ^ (word >> 30)) * FIRST_FACTOR & MASK
    word = (word ^ (word >> 27)) * SECOND_FACTOR & MASK
    return word ^ (word >> 31)


def block(seed: int, number: int, rounds: int, count: int = BLOCK_WORDS) -> list[int]:
    """Return the first `count` words of a block."""
    word = mix(seed ^ mix(number + GOLDEN & MASK))
    words = []
    for _ in range(count):
        for _ in range(rounds):
            word = mix(word + GOLDEN & MASK)
        words.append(word)
    return words


def word_at(seed: int, position: int, rounds: int) -> int:
    """Return a word without the memory."""
    number, offset = divmod(position, BLOCK_WORDS)
    return block(seed, number, rounds, offset + 1)[-1]


def walk(seed: int, leaf: int, *, steps: int, words: int, read: Callable[[int], int]) -> int:
    """Return the end of a walk over a number of words."""
    state = mix(~seed + leaf & MASK)
    for _ in range(steps):
        state = mix(state ^ read(state * words >> 64))
    return state


def tree(leaves: Sequence[int]) -> list[list[bytes]]:
    """Return the levels of the tree over a power of two of leaves, the root's last."""
    levels = [[sha256(leaf.to_bytes(WORD_BYTES, "little")).digest() for leaf in leaves]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append(
            [sha256(below[at] + below[at + 1]).digest() for at in range(0, len(below), 2)]
        )
    return levels


def path_of(levels: Sequence[Sequence[bytes]], leaf: int) -> list[str]:
    """Return the neighbors on the way from a leaf to the root, in hexadecimal."""
    return [level[leaf >> height ^ 1].hex() for height, level in enumerate(levels[:-1])]


def root_of(leaf: int, value: int, path: Sequence[str]) -> str:
    """Return the root that an opened leaf leads to.

    Raises:
        ValueError: the path is not in hexadecimal.
    """
    digest = sha256(value.to_bytes(WORD_BYTES, "little")).digest()
    for height, neighbor in enumerate(path):
        other = bytes.fromhex(neighbor)
        digest = sha256(other + digest if leaf >> height & 1 else digest + other).digest()
    return digest.hex()


def opened(seed: int, root: str, *, leaves: int, count: int) -> list[int]:
    """Return which leaves a root opens."""
    start = sha256(f"{seed}:{root}".encode()).digest()
    numbers = (sha256(start + bytes([at])).digest()[:WORD_BYTES] for at in range(count))
    return [int.from_bytes(digest, "little") % leaves for digest in numbers]
