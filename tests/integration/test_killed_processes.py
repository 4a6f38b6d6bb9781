"""Every process of deploy/local is killed at random moments, or restarted in turn, under load.

Agents write numbered samples, users submit jobs and follow logs, and a rule fires. Whatever was
accepted must be there afterwards; only open connections may break.
"""

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import cast

import pytest
import requests
from sqlalchemy import select

from cli.bootstrap import prepare_demo
from cli.database import open_database
from core.clock import utc_now
from core.errors import VedetteError
from core.leases import SCHEDULER_LEASE, Lease
from tests.delivery.engine import CountingEngine
from tests.deployment import BOB, Deployment, api_token
from tests.failures.agents import Agents
from tests.failures.alerts import Inbox, add_rule, running_inbox
from tests.failures.jobs import JobLedger, Users
from tests.failures.samples import SampleLedger
from tests.failures.site import Site
from tests.fixtures.certificates import Authority
from tests.fixtures.docker_engine import IMAGE, skip_unless_installed
from tests.fixtures.many_hosts import OWN, ManyHosts, many_hosts
from tests.fixtures.polling import eventually
from tests.servers import running
from vedette.client import Client

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_docker,
    pytest.mark.needs_mariadb,
    pytest.mark.needs_redis,
    pytest.mark.timeout(1500),
]

AGENTS = 5
ROUNDS = 2
# Everything but nginx behind which the load is, and which is killed as well.
VICTIMS = (*OWN, "nginx", "redis", "mariadb", "victoriametrics")
LONGEST_PAUSE_SECONDS = 4.0
READY_SECONDS = 60
SETTLE_SECONDS = 180
# Longer than the lease of the scheduler.
FROZEN_SECONDS = 35.0
LINES = 400
SETTINGS = {
    "VEDETTE_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
    "VEDETTE_RULE_PACK": "false",
    "VEDETTE_EVALUATION_INTERVAL_SECONDS": "2",
    # All agents and users of this site have one address.
    "VEDETTE_REQUESTS_PER_SECOND_PER_ADDRESS": "0",
    "VEDETTE_REQUESTS_PER_SECOND_PER_USER": "0",
}


@dataclass
class Shape:
    """Processes and load, with the attributes of `Site` that the ledgers use."""

    hosts: ManyHosts
    engine: CountingEngine
    agents: Agents
    authority: Authority
    inbox: Inbox

    @property
    def url(self) -> str:
        return self.hosts.url

    @property
    def store_url(self) -> str:
        return self.hosts.url_of("victoriametrics")

    @property
    def site(self) -> Site:
        return cast("Site", self)

    def active_scheduler(self) -> str:
        """Return the name of the scheduler that has the lease; "" if none has."""
        with open_database(self.hosts.settings) as (_engine, sessions), sessions() as session:
            lease = session.scalars(select(Lease).where(Lease.name == SCHEDULER_LEASE)).first()
        if lease is None or lease.expires_at < utc_now():
            return ""
        pid = int(lease.holder.rpartition(":")[2])
        names = ("scheduler-a", "scheduler-b")
        return next((name for name in names if self.hosts.pid(name) == pid), "")


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shape]:
    skip_unless_installed()
    folder = tmp_path_factory.mktemp("shape")
    engine, disk = CountingEngine(folder), folder / "agents"
    disk.mkdir()
    agents = Agents(folder, disk, count=AGENTS)
    authority = Authority(folder / "certificates", "authority")
    engine.start()
    try:
        with running_inbox() as inbox, many_hosts(folder / "hosts", environ=SETTINGS) as hosts:
            with open_database(hosts.settings) as (_engine, sessions):
                prepare_demo(sessions, now=utc_now())
            agents.write_configurations(
                url=hosts.url, authority=authority.certificate, docker_url=engine.url
            )
            portal = Deployment(hosts.folder / "a", hosts.ports["nginx"],
                                hosts.settings.database_url)  # fmt: skip
            secret = portal.enrollment_secret("acme", uses=AGENTS)
            for name, home in agents.homes.items():
                options = ("--name", name, "--data-dir", str(home))
                done = portal.vedette("agent", "enroll", hosts.url, secret, *options)
                assert done.returncode == 0, done.stderr
            homes = [str(home) for home in agents.homes.values()]
            fleet = [sys.executable, "-m", "tests.failures.fleet", *homes]
            with running(fleet, log_path=folder / "fleet.log"):
                shape = Shape(hosts, engine, agents, authority, inbox)
                add_rule(Users(shape.site), inbox)
                yield shape
    finally:
        engine.close()


@dataclass
class Follower:
    """Bob follows the log of a job through nginx while processes are killed."""

    url: str
    token: str
    job_id: str
    lines: list[str] = field(default_factory=list)
    error: str = ""

    def run(self) -> None:
        """Follow until the job ends."""
        try:
            with closing(Client(self.url, self.token)) as client:
                self.lines += [line.text for line in client.log_lines(self.job_id, follow=True)]
        except VedetteError as error:
            self.error = error.message


def test_whatever_was_accepted_is_there_after_every_process_was_killed(shape: Shape) -> None:
    seed = time.time_ns()
    numbers = random.Random(seed)  # noqa: S311 - not for security
    users = Users(shape.site)
    samples, jobs = SampleLedger(shape.site), JobLedger(shape.site, users)
    samples.note_present()
    followers = start_followers(shape)
    jobs.begin("killed")
    names = shape.agents.names
    firing = 0
    try:
        for _ in range(ROUNDS):
            for victim in numbers.sample(VICTIMS, len(VICTIMS)):
                if firing < len(names):
                    shape.agents.set_signal(names[firing], 1, round_name="1")
                    firing += 1
                time.sleep(numbers.uniform(0, LONGEST_PAUSE_SECONDS))
                kill(shape.hosts, victim)
        freeze_active_scheduler(shape)
    finally:
        jobs.end()
    eventually(lambda: shape.inbox.have(names, "firing"), within_seconds=SETTLE_SECONDS,
               what=f"an alert of each appliance (seed {seed})")  # fmt: skip
    eventually(jobs.has_ended, within_seconds=SETTLE_SECONDS, every_seconds=1, what="all jobs")
    for follower, thread in followers:
        thread.join(SETTLE_SECONDS)
        assert follower.error == "", seed
        assert follower.lines == [str(number) for number in range(1, LINES + 1)], seed
        assert stored_lines(users, follower.job_id) == follower.lines, seed
    runs = jobs.runs()
    samples.note_present()
    eventually(samples.is_complete, within_seconds=SETTLE_SECONDS, every_seconds=1,
               what="all samples")  # fmt: skip
    losses = samples.count()
    assert (runs.lost, runs.ran_twice, runs.failures) == (0, 0, []), seed
    assert (losses.lost, losses.doubled) == (0, 0), seed
    assert runs.submitted > len(VICTIMS)


def start_followers(shape: Shape) -> list[tuple[Follower, threading.Thread]]:
    """Submit jobs with long logs, and follow each through nginx."""
    portal = Deployment(shape.hosts.folder / "a", shape.hosts.ports["nginx"])
    token = api_token(portal, BOB)
    body = {
        "image": IMAGE,
        "memory_bytes": 64 * 2**20,
        "command": ["sh", "-c", f"for n in $(seq {LINES}); do echo $n; sleep 0.3; done"],
    }
    followers = []
    with closing(Client(shape.url, token)) as client:
        for number in range(2):
            job_id = client.post("/jobs", {**body, "name": f"long-{number}"})["id"]
            follower = Follower(shape.url, token, job_id)
            thread = threading.Thread(target=follower.run, daemon=True)
            thread.start()
            followers.append((follower, thread))
    return followers


def stored_lines(users: Users, job_id: str) -> list[str]:
    """Return the lines of a log as the portal has stored them."""
    page = users.request("GET", f"/jobs/{job_id}/log", params={"offset": 0}).json()
    return str(page["text"]).split()


def kill(hosts: ManyHosts, name: str) -> None:
    """Kill a process, and wait until it has been started again and is ready."""
    pid = hosts.pid(name)
    hosts.signal(name, signal.SIGKILL)
    eventually(lambda: hosts.pid(name) not in {0, pid}, within_seconds=READY_SECONDS, what=name)
    wait_until_ready(hosts)


def wait_until_ready(hosts: ManyHosts) -> None:
    """Wait until all processes of the portal are ready."""
    eventually(
        lambda: all(map(hosts.is_ready, OWN)), within_seconds=READY_SECONDS, what="all processes"
    )


def freeze_active_scheduler(shape: Shape) -> None:
    """Stop the scheduler with the lease until another has it, then let it go on."""
    frozen = eventually(shape.active_scheduler, within_seconds=READY_SECONDS)
    shape.hosts.signal(frozen, signal.SIGSTOP)
    try:
        eventually(
            lambda: shape.active_scheduler() not in {"", frozen},
            within_seconds=FROZEN_SECONDS,
            every_seconds=0.5,
            what="the other scheduler",
        )
    finally:
        shape.hosts.signal(frozen, signal.SIGCONT)


@dataclass
class Requests:
    """Sends a request again and again through nginx, over one connection and over new ones."""

    send: Callable[[requests.Session], requests.Response]
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        """Send until told to stop."""
        with requests.Session() as lasting:
            for number in count():
                if stop.wait(0.05):
                    return
                with requests.Session() as new:
                    self._try(lasting if number % 2 else new)

    def _try(self, session: requests.Session) -> None:
        self.answers += 1
        try:
            answer = self.send(session)
        except requests.RequestException as error:
            self.failures.append(f"{time.strftime('%X')} {type(error).__name__}: {error}")
        else:
            if not answer.ok:
                self.failures.append(f"{time.strftime('%X')} {answer.status_code} {answer.text}")


def test_no_request_fails_while_all_processes_are_restarted_in_turn(shape: Shape) -> None:
    hosts = shape.hosts
    token = api_token(Deployment(hosts.folder / "a", hosts.ports["nginx"]), BOB)
    headers = {"Authorization": f"Bearer {token}"}
    alice = Users(shape.site)
    write_token = alice.request("POST", "/write-tokens", json={"name": "load"}).json()["token"]
    job = {"image": IMAGE, "command": ["true"], "memory_bytes": 64 * 2**20, "name": "restarted"}
    numbers = count()

    def write(session: requests.Session) -> requests.Response:
        line = f"restarts,host=load value={next(numbers)} {time.time_ns()}"
        token = {"Authorization": f"Token {write_token}"}
        return session.post(f"{hosts.url}/api/v2/write", data=line, headers=token, timeout=30)

    load = {
        "read": Requests(
            lambda session: session.get(
                f"{hosts.url}/api/v1/appliances", headers=headers, timeout=30
            )
        ),
        "submit": Requests(
            lambda session: session.post(
                f"{hosts.url}/api/v1/jobs", json=job, headers=headers, timeout=30
            )
        ),
        "write": Requests(write),
    }
    stop = threading.Event()
    threads = [threading.Thread(target=kind.run, args=(stop,)) for kind in load.values()]
    for thread in threads:
        thread.start()
    try:
        for name in OWN:
            restart(hosts, name)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert {name: kind.failures for name, kind in load.items()} == {name: [] for name in load}
    assert all(kind.answers > 100 for kind in load.values())
    eventually(lambda: stored_values(shape) == load["write"].answers, what="all values")


def restart(hosts: ManyHosts, name: str) -> None:
    """Restart a process as an upgrade does, and wait until nginx chooses it again."""
    pid = hosts.pid(name)
    hosts.signal(name, signal.SIGTERM)
    eventually(lambda: hosts.pid(name) not in {0, pid}, within_seconds=READY_SECONDS, what=name)
    wait_until_ready(hosts)
    time.sleep(3)  # `fail_timeout` of nginx.conf, and one second


def stored_values(shape: Shape) -> int:
    """Return how many values of the load of writes the store has."""
    query = {"match[]": '{__name__="restarts_value"}', "start": "0"}
    answer = requests.get(f"{shape.store_url}/api/v1/export", query, timeout=60)
    return sum(len(json.loads(line)["values"]) for line in answer.text.splitlines())
