"""`vedette market`: alice offers, charlie rents, olivia admits; by the REST API."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.projects.models import Project
from marketplace.models import Contract
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.in_process import run_vedette
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.attempts import end_attempts

OFFER = """
name: H100s in Oslo
description: Eight to a host
appliance_ids: [dgx-01]
terms:
  currency: EUR
  price: "2.45"
  region: oslo
  notice_days: 1
  max_seconds: 72h
  facts: [{name: iso27001, valid_until: 2099-06-30}]
calendar: [{from_date: 2026-12-24, is_closed: true}]
"""


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """A portal whose marketplace is on."""
    return replace(settings, marketplace=True, marketplace_requires_verification=False)


class Run:
    """Runs commands as a user of the cast."""

    def __init__(self, url: str, secrets: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self._url = url
        self._secrets = secrets

    def __call__(self, user: str, *words: str, code: int = 0) -> str:
        environ = {"VEDETTE_URL": self._url, "VEDETTE_TOKEN": self._secrets[user]}
        ended = run_vedette("market", *words, environ=environ)
        assert ended.returncode == code, ended.stderr
        return ended.stderr if code else ended.stdout + ended.stderr

    def other(self, *words: str, code: int = 0) -> str:
        """Run another command as charlie."""
        environ = {"VEDETTE_URL": self._url, "VEDETTE_TOKEN": self._secrets["charlie"]}
        ended = run_vedette(*words, environ=environ)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr if code else ended.stdout

    def file(self, text: str) -> str:
        path = self.folder / "file.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
def run(sessions: SessionFactory, cast: Cast, url: str, clock: FrozenClock, tmp_path: Path) -> Run:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        secrets = {
            user.name.lower(): create_api_token(
                session, scope_of(user), name="test", now=clock.now
            )[1]
            for user in (cast.alice, cast.charlie, cast.olivia)
        }
    return Run(url, secrets, tmp_path)


@pytest.fixture
def published(run: Run, cast: Cast) -> Run:
    """The offer is in the catalogue, and globex may rent."""
    run("alice", "account", "--request", "provider")
    run("charlie", "account", "--request", "customer")
    run("olivia", "admit", cast.acme.id, "provider")
    run("olivia", "admit", cast.globex.id, "customer")
    run("alice", "offer", "apply", "-f", run.file(OFFER), "--publish")
    return run


def test_tenants_ask_and_the_operator_admits(run: Run, cast: Cast) -> None:
    assert "No tenant has asked" in run("olivia", "accounts")
    shown = run("alice", "account", "--request", "provider", "--country", "no")
    assert "provider state: requested" in shown
    assert "country: NO" in shown
    assert "Acme  requested  none" in run("olivia", "accounts")
    admitted = run("olivia", "admit", cast.acme.id, "provider")
    assert admitted == "Acme as a provider: active\n"
    suspended = run("olivia", "admit", cast.acme.id, "provider", "--suspend")
    assert suspended == "Acme as a provider: suspended\n"


def test_an_offer_is_kept_in_a_file(published: Run) -> None:
    run = published
    assert "H100s in Oslo  published  2.45 EUR/h  oslo    1 named" in run("alice", "offer", "list")
    cheaper = run.file(OFFER.replace("2.45", "2.2"))
    assert run("alice", "offer", "apply", "-f", cheaper) == "H100s in Oslo is published\n"
    assert "price: '2.2'" in run("alice", "offer", "show", "H100s in Oslo")
    assert "dgx-01  NVIDIA H100 80GB HBM3  8 of 8  2.2    yes" in run(
        "alice", "offer", "appliances", "H100s in Oslo"
    )
    assert run("alice", "offer", "pause", "H100s in Oslo") == "H100s in Oslo is paused\n"
    assert "Nothing on offer matches" in run("charlie", "catalogue")
    assert run("alice", "offer", "publish", "H100s in Oslo") == "H100s in Oslo is published\n"
    assert run("alice", "offer", "withdraw", "H100s in Oslo") == "H100s in Oslo is withdrawn\n"


def test_a_customer_finds_takes_and_leaves(published: Run) -> None:
    run = published
    filters = ("--gpu-model", "H100", "--max-price", "3", "--fact", "iso27001", "--open")
    (line,) = run("charlie", "catalogue", *filters).splitlines()[1:]
    assert "H100s in Oslo  Acme      NVIDIA H100 80GB HBM3  80 GiB  oslo    8 of 8  2.45" in line
    assert "Nothing on offer matches" in run("charlie", "catalogue", "--region", "bergen")
    assert "8 of 8  2.45" in run("charlie", "capacity")
    shown = run("charlie", "show", "H100s in Oslo")
    assert "max seconds: 3d" in shown
    assert "facts: name iso27001, valid until 2099-06-30" in shown
    taken = run("charlie", "take", "H100s in Oslo", "--yes")
    (contract,) = json.loads(run("charlie", "contracts", "-o", "json"))
    assert f"Contract {contract['id']} is active." in taken
    assert "state: noticed" in run("charlie", "contract", "notice", contract["id"])
    assert "The contract ends at" in run("alice", "contract", "end", contract["id"], code=1)
    ended = run("olivia", "contract", "end", contract["id"], "--reason", "Fraud")
    assert "state: ended" in ended


def test_both_sides_negotiate(published: Run) -> None:
    run = published
    offer_id = json.loads(run("charlie", "catalogue", "-o", "json"))[0]["offer_id"]
    wanted = run.file("{currency: EUR, price: '2'}")
    run("charlie", "contract", "propose", offer_id, "-f", wanted, "--note", "For a year")
    (contract,) = json.loads(run("alice", "contracts", "-o", "json", "--side", "provider"))
    assert contract["versions"][0]["note"] == "For a year"
    counter = run.file("{currency: EUR, price: '2.2'}")
    shown = run("alice", "contract", "propose", contract["id"], "-f", counter)
    assert "version 2: proposed, proposed by alice@acme.example" in shown
    accepted = run("charlie", "contract", "accept", contract["id"], "2", "--yes")
    assert "version 2: accepted, proposed by alice@acme.example, accepted by charlie" in accepted
    run("alice", "contract", "propose", contract["id"], "-f", wanted)
    declined = run("charlie", "contract", "decline", contract["id"], "3")
    assert "version 3: declined" in declined
    run("alice", "contract", "propose", contract["id"], "-f", wanted)
    withdrawn = run("alice", "contract", "decline", contract["id"], "4", "--withdraw")
    assert "version 4: withdrawn" in withdrawn


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("terms: {}", "The file has no name of an offer"),
        ("{name: x, labels: {a: b}, terms: {currency: USD, price: '1'}}", "are in EUR, not USD"),
        ("{name: x, labels: {a: b}, terms: {currency: EUR, price: cheap}}", "Not a valid"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(run: Run, text: str, message: str) -> None:
    assert message in run("alice", "offer", "apply", "-f", run.file(text), code=1)


def test_a_provider_reads_its_reputation_and_a_customer_rates(
    published: Run, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    run = published
    run("charlie", "take", "H100s in Oslo", "--yes")
    (contract,) = json.loads(run("charlie", "contracts", "-o", "json"))
    assert "Rate it once a job has" in run(
        "charlie", "contract", "rate", contract["id"], "5", code=1
    )
    with sessions.begin() as session:
        made = session.get_one(Contract, contract["id"])
        end_attempts(session, cast, made, {}, at=clock.now)
    rated = run("charlie", "contract", "rate", contract["id"], "5", "--comment", "Fast")
    assert rated == "Rated 2026-03 with 5 of 5 stars.\n"
    shown = run("alice", "reputation")
    assert "Score 72 of 100; expected 50, with 90 % probability 14 to 86" in shown
    assert "What would raise it:" in shown
    assert "satisfaction  rated_5  100 %" in run("alice", "reputation", "evidence")
    assert "No evidence" in run("alice", "reputation", "evidence", "--dimension", "checks")
    operators = run("olivia", "reputation", "--tenant", cast.acme.id)
    assert operators == shown


def test_providers_see_their_standing_and_appeal_against_suspensions(run: Run, cast: Cast) -> None:
    acme = cast.acme.id
    run("olivia", "admit", acme, "provider")
    assert "state: good" in run("alice", "standing", "show")
    suspended = run("olivia", "standing", "suspend", acme, "--reason", "It resells accounts.")
    assert suspended == "Acme is suspended\n"
    shown = run("alice", "standing", "show")
    assert "cause: An operator suspended the provider: It resells accounts." in shown
    assert "decides about its return" in shown
    assert "operator" in run("alice", "standing", "events")
    assert run("alice", "standing", "appeals") == "No appeals.\n"
    assert run("alice", "standing", "appeal", "We don't.") == "Appeal sent to the operator.\n"
    assert "has appealed" in run("alice", "standing", "appeal", "Really.", code=1)
    appeal_id = run("olivia", "standing", "appeals", "-o", "name").strip()
    answer = ("--answer", "A mistake.")
    assert run("olivia", "standing", "accept", appeal_id, *answer) == "Appeal accepted\n"
    assert "decided already" in run("olivia", "standing", "reject", appeal_id, *answer, code=1)
    assert "accepted" in run("alice", "standing", "appeals", "--all")
    assert "Acme" in run("olivia", "standing", "list", "--state", "good")
    assert "in good standing already" in run(
        "olivia", "standing", "reinstate", acme, "--reason", "x", code=1
    )


def test_operators_keep_the_policy_in_a_file(run: Run) -> None:
    file = run.file(run("olivia", "standing", "policy").replace("mend_days: 7", "mend_days: 5"))
    assert "changed: []" in run("olivia", "standing", "policy", "-f", file, "--preview")
    assert "--preview needs a file" in run("olivia", "standing", "policy", "--preview", code=2)
    saved = run("olivia", "standing", "policy", "-f", file, "--note", "Faster")
    assert "Version 1 applies within five minutes." in saved
    assert "mend_days: 5" in saved
    assert "mend_days: 5" in run("olivia", "standing", "policy")
    wrong = run.file("mend_days: 0")
    assert "enter 1 to 365" in run("olivia", "standing", "policy", "-f", wrong, code=1)
    run("alice", "standing", "policy", code=1)


def test_checks_are_listed_explained_and_repeated(published: Run) -> None:
    run = published
    (line,) = run("alice", "check", "list").splitlines()[1:]
    assert line.startswith("dgx-01     unverified")
    assert "No appliance is verified" in run("charlie", "check", "list")
    assert run("alice", "check", "show", "dgx-01").startswith("dgx-01: unverified since")
    assert "It was not challenged yet" in run("alice", "check", "challenges", "dgx-01")
    said = "dgx-01 is verified as soon as it has no jobs\n"
    assert run("alice", "check", "run", "dgx-01") == said
    assert run("olivia", "check", "run", "dgx-01") == said
    assert "No appliance has the name" in run("charlie", "check", "show", "dgx-01", code=1)


def test_a_cancellation_that_is_charged_asks_first(
    published: Run, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    published("charlie", "take", "H100s in Oslo", "--yes")
    with sessions.begin() as session:
        session.add(Project(tenant_id=cast.globex.id, name="vision", created_at=clock.now))
    begin = (clock.now + timedelta(hours=2)).isoformat()
    added = published.other(
        *("queue", "reservation", "add", "Peak", "--project", "vision", "--begin", begin),
        *("--duration", "1h", "--rent", "1", "--max-gpu-hour-price", "5"),
    ).strip()
    remove = ("queue", "reservation", "rm", added)
    asked = published.other(*remove, code=1)
    assert "Peak: 8.00 GPU-hours within the next 24 hours are charged, 19.60. Delete it?" in asked
    assert published.other(*remove, "--yes") == f"{added} deleted\n"
