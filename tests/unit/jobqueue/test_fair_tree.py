"""Fair Tree, dominant resource fairness and decay give the figures of their sources."""

from datetime import timedelta
from itertools import pairwise
from math import inf, log

import pytest

from jobqueue.fairshare.drf import Filling, QueuedJob, Resources
from jobqueue.fairshare.tree import ShareNode, rank_tree
from jobqueue.fairshare.usage import decay_factor, decayed_seconds
from tests.cast import NOON

HALF_LIFE = timedelta(days=7)
# Of the DRF paper: 9 CPUs and 18 GB.
FLEET = Resources(0, 9, 18)
# Slurm ranks users with `FairShare=parent` first in their account. They have no usage here, which
# does the same, and next to no shares, so that their siblings have what they have there.
NO_SHARES = 1e-9


def project(name: str, shares: float, usage: float, *children: ShareNode) -> ShareNode:
    return ShareNode(id=name, name=name, shares=shares, usage=usage, children=children)


def user(name: str, shares: float, usage: float) -> ShareNode:
    return ShareNode(id=name, name=name, shares=shares, usage=usage, is_user=True)


def slurm_tree() -> ShareNode:
    """The associations of Slurm's own test of Fair Tree: raw shares and raw usage."""
    aa = project(
        "aA",
        40,
        45,
        project("aAA", 30, 20, user("uAA1", 1, 20)),
        project("aAB", 10, 25, user("uAB1", 1, 25), user("uAB2", 1, 0)),
    )
    ab = project(
        "aB",
        60,
        25,
        project("aBA", 25, 25, user("uBA1", 1, 25)),
        project("aBB", 35, 0, user("uBB1", 1, 0)),
    )
    ad = project(
        "aD",
        50,
        110,
        user("uD1", NO_SHARES, 0),
        user("uD2", 40, 20),
        user("uD3", 50, 25),
        user("uDA1", NO_SHARES, 0),
        user("uDA2", 30, 10),
        user("uDA3", 50, 25),
    )
    ag = project(
        "aG",
        8,
        20,
        user("uG1", 10, 10),
        project("aGA", 10, 10, user("uGA1", 20, 4), user("uGA2", 20, 6)),
    )
    return project(
        "root",
        1,
        240,
        user("u1", 10, 0),
        user("u2", 10, 10),
        aa,
        ab,
        project("aC", 0, 30, user("uC1", 0, 30)),
        ad,
        project("aE", 10, 0, user("aE1", 10, 0), user("aE2", 10, 0)),
        project("aF", 20, 0, user("uF1", 10, 0), user("uF2", 20, 0)),
        ag,
    )


# Columns of `sshare`: Norm Shares, Effectv Usage, Level FS.
# Source: SchedMD/slurm, testsuite/expect/test24.4 (2022).
SSHARE = {
    "u1": (0.048077, 0.0, inf),
    "u2": (0.048077, 0.041667, 1.153846),
    "aA": (0.192308, 0.187500, 1.025641),
    "aAA": (0.75, 0.444444, 1.6875),
    "uAA1": (1.0, 1.0, 1.0),
    "aAB": (0.25, 0.555556, 0.45),
    "uAB1": (0.5, 1.0, 0.5),
    "uAB2": (0.5, 0.0, inf),
    "aB": (0.288462, 0.104167, 2.769231),
    "aBA": (0.416667, 1.0, 0.416667),
    "aBB": (0.583333, 0.0, inf),
    "aC": (0.0, 0.125, 0.0),
    "uC1": (0.0, 1.0, 0.0),
    "aD": (0.240385, 0.458333, 0.524476),
    "uD2": (0.235294, 0.181818, 1.294118),
    "uD3": (0.294118, 0.227273, 1.294118),
    "uDA2": (0.176471, 0.090909, 1.941176),
    "aE": (0.048077, 0.0, inf),
    "aF": (0.096154, 0.0, inf),
    "uF1": (0.333333, 0.0, inf),
    "aG": (0.038462, 0.083333, 0.461538),
    "uG1": (0.5, 0.5, 1.0),
    "aGA": (0.5, 0.5, 1.0),
    "uGA1": (0.5, 0.4, 1.25),
    "uGA2": (0.5, 0.6, 0.833333),
}
# The column FairShare there. uD2 is 5/21 = 0.238095 in it: its quotient equals those of uD3 and
# uDA3, which Slurm misses by rounding, as the comment of that test says.
FAIR_SHARE = {
    **dict.fromkeys(("u1", "aE1", "aE2", "uF1", "uF2"), 1.0),
    "uBB1": 0.761905,
    "uBA1": 0.714286,
    "u2": 0.666667,
    "uAA1": 0.619048,
    "uAB2": 0.571429,
    "uAB1": 0.523810,
    **dict.fromkeys(("uD1", "uDA1"), 0.476190),
    "uDA2": 0.380952,
    **dict.fromkeys(("uD3", "uDA3", "uD2"), 0.333333),
    **dict.fromkeys(("uG1", "uGA1"), 0.190476),
    "uGA2": 0.095238,
    "uC1": 0.047619,
}


def test_fair_tree_has_the_figures_of_slurms_test() -> None:
    root = slurm_tree()
    users = rank_tree(root)
    nodes = {node.id: node for _, node in root.walk()}
    figures = {
        name: (node.normalized_shares, node.normalized_usage, node.level_fair_share)
        for name, node in nodes.items()
    }
    for name, expected in SSHARE.items():
        assert figures[name] == pytest.approx(expected, abs=1e-6), name
    assert {node.id: node.factor for node in users} == pytest.approx(FAIR_SHARE, abs=1e-6)


def test_all_users_of_a_project_come_before_those_of_a_sibling_that_had_more() -> None:
    served = project("served", 1, 60, user("idle", 1, 0), user("busy", 1, 60))
    owed = project("owed", 1, 40, user("greedy", 1, 39), user("modest", 1, 1))
    users = rank_tree(project("tenant", 1, 100, served, owed))
    assert [(node.id, node.rank) for node in users] == [
        ("modest", 1),
        ("greedy", 2),
        ("idle", 3),
        ("busy", 4),
    ]


def test_projects_with_the_same_level_fair_share_are_ranked_as_one() -> None:
    left = project("left", 1, 10, user("a", 1, 9), user("b", 1, 1))
    right = project("right", 1, 10, user("c", 1, 5), user("d", 1, 5))
    users = rank_tree(project("tenant", 1, 20, left, right))
    assert [(node.id, node.rank) for node in users] == [("b", 1), ("c", 2), ("d", 2), ("a", 4)]


def fill(*requests: tuple[float, Resources]) -> list[int]:
    """The users that endless small jobs are given to, by weight and request of each."""
    weights = sum(weight for weight, _ in requests)
    users = [
        Filling(weight / weights, jobs=[QueuedJob(number, request.parts_of(FLEET))] * 20)
        for number, (weight, request) in enumerate(requests)
    ]
    used = Resources()
    given: list[int] = []
    for job, _ in Filling(children=users).fill():
        used = used.plus(requests[job.number][1])
        if used.cpus > FLEET.cpus or used.memory_bytes > FLEET.memory_bytes:
            return given
        given.append(job.number)
    return given


def test_drf_gives_three_and_two_tasks_as_in_its_paper() -> None:
    # Ghodsi and others, NSDI 2011, section 4.1 and figure 3: 9 CPUs and 18 GB; the tasks of user A
    # need 1 CPU and 4 GB, those of B 3 CPUs and 1 GB. The dominant shares become 2/3 each.
    given = fill((1, Resources(0, 1, 4)), (1, Resources(0, 3, 1)))
    assert (given.count(0), given.count(1)) == (3, 2)


def test_a_weight_gives_more_of_the_dominant_resource() -> None:
    # Of 18 GB, user A with twice the shares gets 12 and B 6.
    given = fill((2, Resources(0, 0.5, 2)), (1, Resources(0, 0.5, 2)))
    assert (given.count(0), given.count(1)) == (6, 3)


def test_drf_compares_projects_before_their_users_and_counts_what_runs() -> None:
    one_gpu = Resources(1 / 8, 1 / 64, 1 / 64)
    served = Filling(
        0.5,
        [
            Filling(0.5, jobs=[QueuedJob(0, one_gpu)]),
            Filling(0.5, allocated=Resources(4 / 8, 4 / 64, 4 / 64)),
        ],
    )
    owed = Filling(0.5, [Filling(1.0, jobs=[QueuedJob(1, one_gpu), QueuedJob(2, one_gpu)])])
    order = list(Filling(children=[served, owed]).fill())
    assert [(job.number, level) for job, level in order] == [(1, 0.0), (2, 0.25), (0, 1.0)]


def test_usage_halves_with_each_half_life() -> None:
    hour = timedelta(hours=1)
    used = decayed_seconds(NOON - hour, NOON, at=NOON, half_life=HALF_LIFE)
    # The integral of 2^(-s/T) over the last hour.
    seconds = HALF_LIFE.total_seconds()
    assert used == pytest.approx(seconds / log(2) * (1 - 2 ** (-3600 / seconds)))
    later = decayed_seconds(NOON - hour, NOON, at=NOON + 2 * HALF_LIFE, half_life=HALF_LIFE)
    assert later == pytest.approx(used / 4)
    assert decay_factor(HALF_LIFE, HALF_LIFE) == 0.5


def test_usage_of_a_period_is_the_sum_of_its_parts_in_any_order() -> None:
    instants = [NOON, NOON + timedelta(hours=5), NOON + timedelta(days=9)]
    at = NOON + timedelta(days=3)
    parts = [
        decayed_seconds(since, until, at=at, half_life=HALF_LIFE)
        for since, until in pairwise(instants)
    ]
    whole = decayed_seconds(instants[0], instants[2], at=at, half_life=HALF_LIFE)
    assert sum(parts) == pytest.approx(whole)
    assert decayed_seconds(instants[2], instants[0], at=at, half_life=HALF_LIFE) == 0
