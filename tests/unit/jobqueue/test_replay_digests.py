"""A replay gives the same starts and ends to the last digit, however it is computed."""

import hashlib
import random

import pytest
from msgspec import structs

from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.projects.models import QuotaResource
from jobqueue.projects.quotas import QuotaRequest
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    RecordedProject,
    RecordedReservation,
    Recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Timeline

GIB = 1024**3
MODELS = ("H100", "A100", "L40S")
# Of the code before any of its shortcuts: change them only with what a replay is meant to do.
DIGESTS = {
    "first_free_else_lru priority": "8f0d584ece4e670c",
    "best_fit priority": "e1356bda84e39eaa",
    "spread priority": "bf7d55fcc9a43e3f",
    "least_fragmentation priority": "22e1f2fae7fee177",
    "first_free_else_lru fifo": "6e3e730d5cfef3a5",
    "first_free_else_lru project_shares": "7a0bbc5bc8cbe3c9",
    "first_free_else_lru fair_tree": "0c89323a8221e6f2",
    "first_free_else_lru drf": "5ccc2e5a87e435d9",
    "gangs 0": "ef8dc11a3dafe119",
    "preemption 1": "80812ceb8df8a365",
    "caps 2": "0d085b9df5929e16",
    "quotas 3": "62e83cb687b54ac8",
    "reservations 2": "ee9e360a814f6d20",
}
# By day the others, which go through most of the same code.
NIGHTLY = {
    "spread priority",
    "least_fragmentation priority",
    "first_free_else_lru fifo",
    "first_free_else_lru project_shares",
    "first_free_else_lru drf",
    "caps 2",
}


def fleet(drawn: random.Random) -> list[RecordedAppliance]:
    """Appliances of several sizes; some have GPUs of two models."""
    appliances = []
    for number in range(12):
        model, gpus = drawn.choice(MODELS), drawn.choice([0, 2, 4, 8])
        of_model = RecordedGPU(model=model, memory_bytes=drawn.choice([40, 80]) * GIB)
        other = RecordedGPU(model="T4", memory_bytes=16 * GIB)
        listed = (of_model,) * gpus + (other,) * drawn.choice([0, 0, 2])
        appliances.append(
            RecordedAppliance(
                name=f"node-{number:02}",
                cpus=drawn.choice([16, 32, 64.5]),
                memory_bytes=drawn.choice([64, 256]) * GIB,
                gpus=listed,
            )
        )
    return appliances


def recorded(seed: int, policy: str, order: str = "priority", *, gangs: bool = False) -> Recording:
    """More jobs than the appliances can run at once, of all kinds."""
    drawn = random.Random(seed)  # noqa: S311 - an experiment
    appliances, jobs, at = fleet(drawn), [], 0.0
    for _ in range(400):
        at += drawn.choice([0, 0.5, 3.25, 9])
        gpus = drawn.choice([0, 1, 1, 1, 2, 4, 8])
        jobs.append(
            RecordedJob(
                submitted_seconds=at,
                run_seconds=drawn.choice([0, 60, drawn.uniform(1, 200)]),
                time_limit_seconds=drawn.choice([0, 60, 150, 400]),
                gpus=gpus,
                gpu_milli=drawn.choice([300, 700, 1000]) if gpus == 1 else 1000,
                gpu_memory_bytes=drawn.choice([0, 0, 0, 40 * GIB]) if gpus else 0,
                gpu_models=drawn.choice([(), (), ("H100",), ("A100", "L40S")]) if gpus else (),
                cpus=drawn.choice([0.5, 1, 4, 10]),
                memory_bytes=drawn.choice([1, 4, 30]) * GIB,
                appliance=drawn.choice(["", "", "", "", "node-03"]),
                priority=drawn.choice([0, 0, 0, 1, 2]),
                is_preemptible=drawn.random() < 0.4,
                user=drawn.randrange(1, 6),
                project=drawn.randrange(4),
                nodes=drawn.choice([1, 1, 1, 2, 3]) if gangs else 1,
            )
        )
    return Recording(appliances=appliances, jobs=jobs, rules=QueueRules(policy=policy, order=order))


def with_rules(seed: int, name: str) -> Recording:
    """A recording with a rule beside the policy and the order."""
    recording = recorded(seed, POLICY_NAMES[seed % len(POLICY_NAMES)], gangs=name == "gangs")
    if name == "preemption":
        recording.rules = structs.replace(recording.rules, allows_preemption=True)
    elif name == "caps":
        recording.rules = structs.replace(recording.rules, max_gpus_per_user=6, max_gpus=20)
    elif name == "quotas":
        gpus = QuotaResource.GPUS
        quotas = (
            QuotaRequest(resource=gpus, maximum=6),
            QuotaRequest(resource=gpus, guaranteed=8),
            QuotaRequest(resource=gpus, guaranteed=4),
        )
        recording.projects = [
            RecordedProject(project=project, quotas=(quota,))
            for project, quota in enumerate(quotas, 1)
        ]
    elif name == "reservations":
        recording.reservations = [
            RecordedReservation(
                appliances=("node-01", "node-04"), periods=((100, 300), (900, 1000)), project=1
            ),
            RecordedReservation(appliances=("node-07",), periods=((50, 700),), gpus=2),
        ]
    return recording


def digest(timeline: Timeline) -> str:
    arrays = (timeline.starts, timeline.ends, timeline.models)
    whole = b"".join(array.tobytes() for array in arrays)
    others = repr((timeline.lost, timeline.impossible)).encode()
    return hashlib.sha256(whole + others).hexdigest()[:16]


def replayed(recording: Recording) -> str:
    return digest(Replay(recording, lambda _part: None).run())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in DIGESTS],
)
def test_a_replay_gives_the_same_timeline(name: str) -> None:
    rule, argument = name.split()
    if rule in POLICY_NAMES:
        recording = recorded(1, rule, argument)
    else:
        recording = with_rules(int(argument), rule)
    assert replayed(recording) == DIGESTS[name]
