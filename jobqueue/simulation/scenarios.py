"""Scenarios: today's rules and hardware, and what to compare them with.

Users write other shares and quotas of projects as text. `vision=3` gives three shares to a project.
`vision:gpus:guaranteed=4,maximum=8` replaces its quota of GPUs, `vision:H100 gpus:maximum=4` that
of a model. What is not named is 0 or no limit, and `vision:gpus:none` removes the quota.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import product
from typing import Annotated

import msgspec
from msgspec import structs

from core.errors import InvalidInputError
from core.quantities import parse_size
from core.spec import About
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.projects.models import QuotaResource
from jobqueue.projects.quotas import LIMITS, QuotaRequest, quota_errors
from jobqueue.projects.service import MAX_SHARES
from jobqueue.simulation.order import ORDER_NAMES
from jobqueue.simulation.recording import (
    RecordedProject,
    Recording,
    add_appliances,
    check_recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Results, figures

TODAY = "today"
MAX_SCENARIOS = 20
_NONE = "none"


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from today; empty means as it is."""

    policies: Annotated[
        Sequence[str],
        About("Placement policies, each a scenario.", maximum=20, choices=POLICY_NAMES),
    ] = ()
    orders: Annotated[
        Sequence[str],
        About("Orders, each a scenario with each policy.", maximum=20, choices=ORDER_NAMES),
    ] = ()
    added: Annotated[
        Sequence[str], About("Appliances to add: `2xdgx-01` is two more like dgx-01.", maximum=100)
    ] = ()
    allows_preemption: Annotated[
        bool | None, About("Whether jobs may displace preemptible ones; null: as it is.")
    ] = None
    shares: Annotated[
        Sequence[str], About("Shares of projects, such as `vision=3`.", maximum=500)
    ] = ()
    quotas: Annotated[
        Sequence[str],
        About(
            "Quotas of projects, such as `vision:gpus:guaranteed=4,maximum=8`; see the docs.",
            maximum=500,
        ),
    ] = ()


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A name, and the recording with its rules, projects and appliances."""

    name: str
    recording: Recording


def scenarios(
    recording: Recording,
    changes: Changes,
    *,
    names: Mapping[str, int] | None = None,
    needs_jobs: bool = True,
) -> list[Scenario]:
    """Return today's scenario and those with the changes.

    Args:
        recording: jobs, appliances and rules.
        changes: what differs.
        names: the numbers of projects by name, besides the numbers themselves.
        needs_jobs: whether there must be jobs; without, only the rest is checked.

    Raises:
        InvalidInputError: there is nothing to replay, or a change is unknown.
    """
    if needs_jobs and not recording.jobs:
        raise InvalidInputError("There are no jobs to replay. Choose a longer range.")
    check_recording(recording)
    today = recording.rules
    _check_choice("order", [today.order, *changes.orders], ORDER_NAMES, field="orders")
    _check_choice("policy", [today.policy, *changes.policies], POLICY_NAMES, field="policies")
    wider = msgspec.structs.replace(recording)
    with _errors_at("added"):
        for wanted in changes.added:
            wider.appliances = add_appliances(wider, wanted)
    wider.projects = _changed_projects(recording, changes.shares, changes.quotas, names or {})
    listed = [Scenario(name=TODAY, recording=recording)]
    choices = product(changes.policies or (today.policy,), changes.orders or (today.order,))
    for policy, order in choices:
        rules = msgspec.structs.replace(today, policy=policy, order=order)
        if changes.allows_preemption is not None:
            rules = msgspec.structs.replace(rules, allows_preemption=changes.allows_preemption)
        changed = msgspec.structs.replace(wider, rules=rules)
        name = _name(changed, recording)
        if name and name not in {scenario.name for scenario in listed}:
            listed.append(Scenario(name=name, recording=changed))
    if len(listed) > MAX_SCENARIOS:
        raise InvalidInputError(
            f"These are {len(listed)} scenarios, and at most {MAX_SCENARIOS} run at once. "
            "Choose fewer policies or orders."
        )
    return listed


def _check_choice(word: str, chosen: Sequence[str], choices: Sequence[str], *, field: str) -> None:
    unknown = sorted(set(chosen) - set(choices))
    if unknown:
        message = f"Unknown {word} {unknown[0]!r}. Choose one of {', '.join(choices)}."
        raise InvalidInputError(message, errors={field: [message]})


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
    for word, was, is_now in (
        ("shares", recording.shares(), changed.shares()),
        ("quotas", _quotas(recording), _quotas(changed)),
    ):
        if was != is_now:
            differences.append(f"other {word}")
    added = len(changed.appliances) - len(recording.appliances)
    if added:
        differences.append(f"{added} more appliance{'s' if added > 1 else ''}")
    return ", ".join(differences)


def _quotas(recording: Recording) -> dict[int, tuple[QuotaRequest, ...]]:
    return {project.project: project.quotas for project in recording.projects if project.quotas}


@contextmanager
def _errors_at(field: str) -> Iterator[None]:
    """Let errors name the field that they are of."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(error.message, errors={field: [error.message]}) from error


def _changed_projects(
    recording: Recording, shares: Sequence[str], quotas: Sequence[str], names: Mapping[str, int]
) -> list[RecordedProject]:
    """Return the projects of a recording with other shares and quotas.

    Args:
        recording: its projects, and those of its jobs.
        shares: such as `vision=3`.
        quotas: such as `vision:gpus:guaranteed=4`.
        names: the numbers of projects by name.

    Raises:
        InvalidInputError: an entry is malformed, or there is no such project.
    """
    projects = {project.project: project for project in recording.projects}
    numbers = {str(number): number for number in projects} | dict(names)
    for job in recording.jobs if shares or quotas else ():
        if job.project:
            numbers.setdefault(str(job.project), job.project)

    def project_named(name: str) -> RecordedProject:
        number = numbers.get(name.strip())
        if number is None:
            listed = ", ".join(sorted(numbers)[:10])
            raise InvalidInputError(
                f"There is no project {name!r}. Choose one of {listed}."
                if listed
                else f"There is no project {name!r}: the jobs have no projects."
            )
        return projects.get(number) or RecordedProject(project=number)

    with _errors_at("shares"):
        for text in shares:
            name, _, amount = text.rpartition("=")
            if not amount.isdecimal() or not 1 <= int(amount[:10]) <= MAX_SHARES:
                raise InvalidInputError(
                    f"{text!r} is not PROJECT=SHARES, such as vision=3, with 1 to {MAX_SHARES}."
                )
            project = structs.replace(project_named(name), shares=int(amount))
            projects[project.project] = project
    with _errors_at("quotas"):
        for text in quotas:
            name, request, is_removed = _quota(text)
            project = project_named(name)
            others = tuple(quota for quota in project.quotas if quota.key != request.key)
            wanted = others if is_removed else (*others, request)
            for errors in quota_errors(wanted).values():
                raise InvalidInputError(f"{text!r}: {errors[0]}")
            projects[project.project] = structs.replace(project, quotas=wanted)
    return list(projects.values())


def _quota(text: str) -> tuple[str, QuotaRequest, bool]:
    """Return the project, the quota, and whether it is removed."""
    name, resource, limits = ["", "", *text.rsplit(":", 2)][-3:]
    model, _, word = resource.strip().rpartition(" ")
    if not name or word not in set(QuotaResource):
        raise InvalidInputError(
            f"{text!r} is not PROJECT:RESOURCE:LIMITS, such as vision:gpus:guaranteed=4,maximum=8. "
            f"Resources are {', '.join(QuotaResource)}, and a GPU model before gpus."
        )
    kind = QuotaResource(word)
    if limits.strip() == _NONE:
        return name, QuotaRequest(resource=kind, gpu_model=model), True
    amounts = dict(_limit(text, kind, part) for part in limits.split(","))
    return name, QuotaRequest(resource=kind, gpu_model=model, **amounts), False


def _limit(text: str, kind: QuotaResource, part: str) -> tuple[str, int]:
    limit, _, amount = (word.strip() for word in part.partition("="))
    try:
        value = parse_size(amount) if kind is QuotaResource.MEMORY_BYTES else int(amount)
    except ValueError:
        value = -1
    if limit not in LIMITS or value < 0:
        raise InvalidInputError(
            f"{part.strip()!r} of {text!r} is no limit. Write {', '.join(LIMITS)} or none, each "
            "with an amount, such as guaranteed=4."
        )
    return limit, value
