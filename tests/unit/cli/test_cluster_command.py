"""`vedette cluster` against a real portal."""

import json

from core.db import SessionFactory
from tenants.models import Appliance, ApplianceState
from tests.cast import Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance, submit


def test_a_cluster_is_made_shown_and_deleted(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        for number in range(1, 4):
            add_appliance(session, cast.acme, f"dgx-{number:02}")
        other = add_appliance(session, cast.globex, "dgx-99")
        lost = add_appliance(session, cast.acme, "old-01")
        lost.state = ApplianceState.LOST
    environ = environ_of(cast.alice)

    def cluster(*words: str) -> tuple[int, str]:
        done = run_vedette("cluster", *words, environ=environ)
        return done.returncode, done.stdout + done.stderr

    assert "No clusters yet" in cluster("list")[1]
    status, text = cluster("create", "train", "dgx-*", "--wait", "0")
    assert (status, text.count("ready")) == (0, 3)
    status, text = cluster("create", "train", "dgx-*", "old-01", "--wait", "1s")
    assert (status, text.count("sent no heartbeat meanwhile")) == (1, 3)
    assert "lost: runs no new jobs" in text
    status, text = cluster("create", "eval", "dgx-01", "--wait", "0")
    assert (status, "dgx-01 (train)" in text) == (1, True)
    assert cluster("create", "eval", "dgx-01", "--wait", "0", "--move")[0] == 0
    listed = json.loads(cluster("list", "-o", "json")[1])
    assert [(row["name"], row["appliances"], row["gpus"]) for row in listed] == [
        ("eval", 1, 8),
        ("train", 3, 24),
    ]
    assert "dgx-02" in cluster("show", "train")[1]
    assert cluster("show", "none")[0] == 1
    assert cluster("create", "train", "dgx-99")[0] == 1, "another tenant's"
    with sessions.begin() as session:
        submit(session, cast.alice, "waiting", required_labels={"cluster": "train"})
        session.get_one(Appliance, other.id).labels = {"cluster": "train"}
    status, text = cluster("delete", "train")
    assert (status, text.count("no longer in train")) == (0, 3)
    with sessions.begin() as session:
        assert session.get_one(Appliance, other.id).labels == {"cluster": "train"}
