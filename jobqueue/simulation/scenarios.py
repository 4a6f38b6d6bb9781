"""Scenarios: today's rules and hardware, and what to compare them with."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product

import msgspec

from core.errors import InvalidInputError
from jobqueue.simulation.order import ORDER_NAMES
from jobqueue.simulation.recording import Recording, add_appliances, check_recording
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Results, figures

TODAY = "today"
MAX_SCENARIOS = 20


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from today; empty means as it is.

    Attributes:
        policies: placement policies, each a scenario.
        orders: orders of the queue, each a scenario with each policy.
        added: appliances to add, such as `2xdgx-01`.
        allows_preemption: whether preemption is allowed; None is as it is.
    """

    policies: Sequence[str] = ()
    orders: Sequence[str] = ()
    added: Sequence[str] = ()
    allows_preemption: bool | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A name, and the recording with its rules and appliances."""

    name: str
    recording: Recording


def scenarios(recording: Recording, changes: Changes) -> list[Scenario]:
    """Return today's scenario and those with the changes.

    Raises:
        InvalidInputError: there is nothing to replay, or a change is unknown.
    """
    check_recording(recording)
    today = recording.rules
    unknown = sorted({today.order, *changes.orders} - set(ORDER_NAMES))
    if unknown:
        raise InvalidInputError(
            f"Unknown order {unknown[0]!r}. Choose one of {', '.join(ORDER_NAMES)}."
        )
    wider = msgspec.structs.replace(recording)
    for wanted in changes.added:
        wider.appliances = add_appliances(wider, wanted)
    listed = [Scenario(name=TODAY, recording=recording)]
    choices = product(changes.policies or (today.policy,), changes.orders or (today.order,))
    for policy, order in choices:
        rules = msgspec.structs.replace(today, policy=policy, order=order)
        if changes.allows_preemption is not None:
            rules = msgspec.structs.replace(rules, allows_preemption=changes.allows_preemption)
        if rules == today and not changes.added:
            continue
        changed = msgspec.structs.replace(wider, rules=rules)
        listed.append(Scenario(name=_name(changed, recording), recording=changed))
    if len(listed) > MAX_SCENARIOS:
        raise InvalidInputError(
            f"These are {len(listed)} scenarios, and at most {MAX_SCENARIOS} run at once. "
            "Choose fewer policies or orders."
        )
    return listed


def replay_all(
    listed: Sequence[Scenario], report: Callable[[float], None]
) -> list[tuple[str, Results]]:
    """Replay the scenarios in as many processes as there are cores; return them in order.

    `report` is called with the part that is done, from 0 to 1.
    """
    results: dict[str, Results] = {}
    for name, outcome in _replayed(listed):
        results[name] = outcome
        report(len(results) / len(listed))
    return [(scenario.name, results[scenario.name]) for scenario in listed]


def replay(scenario: Scenario, report: Callable[[float], None]) -> Results:
    """Replay one scenario."""
    return figures(scenario.recording, Replay(scenario.recording, report).run())


def _replayed(listed: Sequence[Scenario]) -> Iterator[tuple[str, Results]]:
    workers = min(os.cpu_count() or 1, len(listed))
    with ProcessPoolExecutor(workers, initializer=_set_scenarios, initargs=(listed,)) as pool:
        running = {
            pool.submit(_run, number): scenario.name for number, scenario in enumerate(listed)
        }
        for done in as_completed(running):
            yield running[done], done.result()


# Each worker process gets the scenarios once; on Linux, it shares them with its parent.
_scenarios: Sequence[Scenario] = ()


def _set_scenarios(listed: Sequence[Scenario]) -> None:
    global _scenarios  # noqa: PLW0603 - set once, in a worker process
    _scenarios = listed


def _run(number: int) -> Results:
    return replay(_scenarios[number], lambda _part: None)


def _name(changed: Recording, recording: Recording) -> str:
    """Return what differs from today, such as `best_fit, 2 more appliances`."""
    today, rules = recording.rules, changed.rules
    differences = [rules.policy] if rules.policy != today.policy else []
    if rules.order != today.order:
        differences.append(rules.order)
    if rules.allows_preemption != today.allows_preemption:
        differences.append("preemption" if rules.allows_preemption else "no preemption")
    added = len(changed.appliances) - len(recording.appliances)
    if added:
        differences.append(f"{added} more appliance{'s' if added > 1 else ''}")
    return ", ".join(differences)
