"""`vedette job` with gangs and their frameworks."""

import json

from core.db import SessionFactory
from tests.cast import Cast, FrozenClock
from tests.unit.cli.test_job_command import Vedette, environ, job
from tests.unit.jobqueue.builders import add_appliance, dispatch

__all__ = ["environ", "job"]


def test_a_gang_has_the_name_of_its_first_member_and_shows_its_variables(
    job: Vedette, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        for number in (1, 2):
            network = {"address": f"192.0.2.{number}", "can_make_networks": True}
            add_appliance(session, cast.acme, f"dgx-{number:02}", network=network)
    options = ("--name", "train", "--image", "acme/train:1", "--framework", "torch")
    submitted = job("run", *options, "--nodes", "2", "torchrun", "train.py").stdout.split()[0]
    with sessions.begin() as session:
        dispatch(session, now=clock.now)
    shown = json.loads(job("show", "train", "-o", "json").stdout)
    assert (shown["id"], shown["array_index"]) == (submitted, 0)
    assert {"name": "NODE_RANK", "value": "0", "reason": "The member's rank."} in shown["variables"]
    assert "NODE_RANK=0" in job("show", "train").stdout
    wrong = job("run", *options[:-1], "horovod", "--nodes", "2", "train")
    assert wrong.returncode == 2
    assert "'torch'" in wrong.stderr
