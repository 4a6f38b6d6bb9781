"""The cache of remote files: what is read is right, and what is stored is bounded."""

import random
from functools import partial
from pathlib import Path

from timeseries.duckdb.files.block_cache import BLOCK_BYTES, BlockCache

SIZE = 10 * BLOCK_BYTES + 100
FILES = {name: random.Random(name).randbytes(SIZE) for name in ("a", "b")}  # noqa: S311


def part_of(name: str, start: int, end: int) -> bytes:
    return FILES[name][start:end]


def used_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_parts_are_those_of_the_file_and_the_cache_stays_below_its_bound(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path / "cache", max_bytes=6 * BLOCK_BYTES)
    rng = random.Random(1)  # noqa: S311 - samples, not secrets
    for _ in range(200):
        name = rng.choice("ab")
        start = rng.randrange(SIZE)
        end = rng.randint(start, min(SIZE, start + 4 * BLOCK_BYTES))
        part = cache.read(name, start, end, partial(part_of, name))
        assert part == FILES[name][start:end]
        assert used_bytes(tmp_path / "cache") <= 6 * BLOCK_BYTES

    for name in FILES:
        cache.forget(name, SIZE)
    assert used_bytes(tmp_path / "cache") == 0


def test_missing_neighbors_are_one_request_and_what_is_cached_is_none(tmp_path: Path) -> None:
    (tmp_path / "left over").touch()
    cache = BlockCache(tmp_path, max_bytes=2 * SIZE)
    requests: list[tuple[int, int]] = []

    def fetch(first: int, last: int) -> bytes:
        requests.append((first // BLOCK_BYTES, last // BLOCK_BYTES))
        return FILES["a"][first:last]

    cache.read("a", 5 * BLOCK_BYTES, 5 * BLOCK_BYTES + 1, fetch)
    assert cache.read("a", 0, SIZE, fetch) == FILES["a"]
    assert cache.read("a", 1, SIZE - 1, fetch) == FILES["a"][1:-1]

    assert requests == [(5, 6), (0, 5), (6, 11)]
    assert used_bytes(tmp_path) == SIZE
