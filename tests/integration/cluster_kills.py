"""Jobs on a cluster while portal, connector and parts of the cluster are killed at random moments.

Users submit jobs all the time. Each attempt adds a line to a file when it starts and when it ends,
so that a second run shows. Half of the jobs are tried again when their node fails.
"""

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy import update

from cli.database import open_database
from core.clock import utc_now
from core.ids import new_id
from core.leases import Lease
from portal.middleware.idempotency import AnswerLostError
from tests.deployment import BOB, api_token
from tests.fixtures.polling import eventually
from tests.integration.cluster_site import ClusterSite
from tests.integration.test_jobs import FINAL
from vedette.client import Client
from vedette.errors import PortalError

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("TEST_KILLS", "50"))
USERS, JOBS_PER_ROUND = 16, 2
# From a submission to the report of the end of such a job, if nothing is killed.
ROUND_SECONDS, JOB_SECONDS = 4.0, 2.0
RETRIES = 5
SETTLE_SECONDS = 300
# How long a request is sent again while portals are killed.
RETRY_SECONDS = 300


class Kills:
    """Rounds of jobs and kills.

    Args:
        site: whose connector runs `tests.fixtures.killed_connector`.
        shown: the file that jobs write to.
    """

    def __init__(self, site: ClusterSite, shown: Path) -> None:
        self._site, self._shown = site, shown
        self._token = api_token(site.deployment, BOB)
        self._job_ids: list[str] = []
        self._dice = random.Random(time.time_ns())  # noqa: S311 - not for security

    def run(
        self, cluster: Mapping[str, Callable[[], None]], repair: Callable[[], None] = lambda: None
    ) -> None:
        """Submit jobs and kill something in each round, then wait until all jobs have ended.

        Args:
            cluster: kills a part of the cluster, and starts it again.
            repair: does what an admin does after such kills.
        """
        own = {
            "portal": self._kill_portal,
            "connector": self._kill_connector,
            "submission": self._kill_after_submission,
        }
        kills = own | dict(cluster)
        # Each of the product's own as often as the whole cluster.
        weights = [1.0] * len(own) + [1 / len(cluster)] * len(cluster)
        victims = self._dice.choices(list(kills), weights, k=ROUNDS)
        with ThreadPoolExecutor(USERS) as users:
            submissions = []
            for victim in victims:
                submissions += [users.submit(self._submit) for _ in range(JOBS_PER_ROUND)]
                time.sleep(self._dice.uniform(0, ROUND_SECONDS))
                kills[victim]()
                repair()
                log.info("killed %s", victim)
            for submission in submissions:
                submission.result()
        log.warning("kills: %s", Counter(victims))
        with self._client() as client:
            listed = [job.id for job in client.jobs()]
            assert sorted(listed) == sorted(self._job_ids), "a job was lost or submitted twice"

            def have_ended() -> bool:
                repair()
                return all(job.state in FINAL for job in client.jobs())

            eventually(
                have_ended, within_seconds=SETTLE_SECONDS, every_seconds=1, what="all jobs to end"
            )

    def check(self, *reasons: str) -> list[str]:
        """Check what ran against what the portal says.

        Args:
            reasons: of attempts that failed because the cluster was killed.

        Returns:
            For each command that ran to its end, the id of its job.
        """
        lines = self._shown.read_text().splitlines()
        assert len(lines) == len(set(lines)), "an attempt ran twice"
        with self._client() as client:
            jobs: list[dict[str, Any]] = [client.get(f"/jobs/{job.id}") for job in client.jobs()]
        attempt_ids = {attempt["id"] for job in jobs for attempt in job["attempts"]}
        assert {line.split()[1] for line in lines} <= attempt_ids
        for job in jobs:
            *earlier, last = job["attempts"]
            has_succeeded = last["state"] == "succeeded"
            assert {attempt["reason"] for attempt in earlier} <= {*reasons}, job
            assert last["reason"] in ({""} if has_succeeded else reasons), job
            assert job["state"] == last["state"], job
            if has_succeeded:
                assert {f"{word} {last['id']} {job['id']}" for word in ("start", "end")} <= {*lines}
            else:
                assert job["max_retries"] == 0, job
        ends = Counter((job["state"], len(job["attempts"])) for job in jobs)
        log.warning("jobs by state and attempts: %s", ends)
        return [line.split()[2] for line in lines if line.startswith("end")]

    def _submit(self) -> None:
        """Submit a job at a random moment of the round."""
        time.sleep(self._dice.uniform(0, ROUND_SECONDS / 2))
        seconds = self._dice.uniform(0, JOB_SECONDS)
        ident = f"$VEDETTE_ATTEMPT_ID $VEDETTE_JOB_ID >> {self._shown}"
        script = f"echo start {ident}; sleep {seconds:.2f}; echo end {ident}"
        name = new_id()
        with self._client() as client:
            try:
                job = client.submit(
                    name=name,
                    command=["/bin/sh", "-c", script],
                    cpus=0.5,
                    memory_bytes=64 * 2**20,
                    max_retries=self._dice.choice([0, RETRIES]),
                )
            except PortalError as error:
                # The portal was killed between the job and the response: the job is in the list.
                if error.code != AnswerLostError.default_code:
                    raise
                [job] = [listed for listed in client.jobs() if listed.name == name]
        self._job_ids.append(job.id)

    def _client(self) -> Client:
        return Client(self._site.deployment.url, self._token, retry_seconds=RETRY_SECONDS)

    def _kill_portal(self) -> None:
        self._site.kill_portal()
        # The next scheduler need not wait until the dead one's lease ends by itself.
        settings = self._site.deployment.settings
        with open_database(settings) as (_engine, sessions), sessions.begin() as session:
            session.execute(update(Lease).values(expires_at=utc_now()))
        self._site.start_portal(is_awaited=False)

    def _kill_connector(self) -> None:
        self._site.kill_connector()
        self._site.start_connector()

    def _kill_after_submission(self) -> None:
        """Let the connector die when the cluster has accepted a job, before it records that."""
        self._site.order_death()
        self._submit()
        self._site.await_death()
        self._site.start_connector()
