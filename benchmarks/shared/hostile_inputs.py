"""The inputs that tenant B repeats in `benchmarks.hostile`, as `INPUTS`.

An input is a function that sends requests by `post`, which returns the decoded answer, or nothing
for an error: mappings go to the REST API as a user's, bytes to the agent API as an agent's. Append
what a review finds; each input runs in as many threads as it says.
"""

import gzip
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Post = Callable[[str, Mapping[str, Any] | bytes], Mapping[str, Any]]
TASKS, RULES = 1_000, 100
FIELDS_OF_A_LINE, GZIP_BYTES = 900, 2_000_000
EXPRESSION = "avg(gpu.temperature_celsius) over 5m by appliance > {}"
WRITE_PATH = "/api/v2/write"
EMPTY_MEMBER = gzip.compress(b"", mtime=0)
# Each once held the interpreter or took memory; see docs/security.md for what bounds them.
TEMPLATES = (
    "{{ 1|round(2500000,'ceil') }}",
    "{{ 'x' * 100000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%1000000000d' % 1 }}",
)


@dataclass(frozen=True, slots=True)
class Input:
    """An input: `rounds` sends it once for each value that it yields, after a pause."""

    name: str
    rounds: Callable[[Post], Iterator[None]]
    pause_seconds: float = 0.1
    threads: int = 1


def wide_lines(post: Post) -> Iterator[None]:
    """Write lines with new fields."""
    for number in itertools.count():
        fields = ",".join(f"w{number}_{n}={n}.5" for n in range(FIELDS_OF_A_LINE))
        # The second is late, so that its hour is rolled up again.
        for age_seconds in (0, 7_200):
            post(WRITE_PATH, f"wide {fields} {time.time_ns() - age_seconds * 10**9}".encode())
        yield


def new_measurements(post: Post) -> Iterator[None]:
    """Write lines with new measurements."""
    for number in itertools.count():
        post(WRITE_PATH, "\n".join(f"m{number}_{n} a=1,b=2" for n in range(50)).encode())
        yield


def gzip_members(post: Post) -> Iterator[None]:
    """Send empty gzip members, as the start of their bytes shows."""
    body = EMPTY_MEMBER * (GZIP_BYTES // len(EMPTY_MEMBER))
    for path in itertools.cycle(("/agent/v1/enroll", WRITE_PATH)):
        post(path, body)
        yield


def arrays(post: Post) -> Iterator[None]:
    """Submit arrays of a thousand tasks and stop them."""
    while True:
        job = post("/jobs", {"name": "bulk", "image": "a/b:1", "array": f"0-{TASKS - 1}"})
        yield
        if "id" in job:
            post(f"/jobs/{job['id']}/stop-array", {})
            yield


def rule_files(post: Post) -> Iterator[None]:
    """Apply files of a hundred rules, each of which changes all of them."""
    for number in itertools.count():
        rules = [
            {"name": f"bulk {n}", "expression": EXPRESSION.format(n + 1), "annotation": f"{number}"}
            for n in range(RULES)
        ]
        post("/rules/apply", {"rules": rules})
        yield


def templates(post: Post) -> Iterator[None]:
    """Preview rules whose annotation is costly to calculate."""
    rule = {
        "name": "costly",
        "measurement": "gpu",
        "field": "power_watts",
        "aggregate": "avg",
        "critical_threshold": 1.0,
    }
    for annotation in itertools.cycle(TEMPLATES):
        post("/rules/preview", {**rule, "annotation": annotation})
        yield


INPUTS = (
    Input("wide lines", wide_lines, pause_seconds=0.5),
    Input("new measurements", new_measurements, pause_seconds=0.5),
    Input("gzip members", gzip_members, pause_seconds=1.0),
    Input("arrays", arrays, threads=4),
    Input("rule files", rule_files, threads=3),
    Input("templates", templates),
)
