"""The inputs that a user of tenant B repeats in `benchmarks.hostile`, as `INPUTS`.

An input is a function that sends requests by `post`, which returns the decoded answer, or nothing
for an error. Append what a review finds; each input runs in as many threads as it says.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Post = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
TASKS, RULES = 1_000, 100
EXPRESSION = "avg(gpu.temperature_celsius) over 5m by appliance > {}"
# Each once held the interpreter or took memory; see docs/security.md for what bounds them.
TEMPLATES = (
    "{{ 1|round(2500000,'ceil') }}",
    "{{ 'x' * 100000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%1000000000d' % 1 }}",
)


@dataclass(frozen=True, slots=True)
class Input:
    """An input: `rounds` sends it once for each value that it yields."""

    name: str
    threads: int
    rounds: Callable[[Post], Iterator[None]]


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
    Input("arrays", 4, arrays),
    Input("rule files", 3, rule_files),
    Input("templates", 1, templates),
)
