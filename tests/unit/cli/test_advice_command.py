"""`vedette advice` against a real portal."""

from core.db import SessionFactory
from tenants.models import User
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.jobqueue.advice_builders import H100
from tests.unit.portal.world_parts import add_advice

KEY = f"short:{H100}"


class Command:
    """Runs `vedette advice` as a user."""

    def __init__(self, url: str, sessions: SessionFactory, user: User, clock: FrozenClock) -> None:
        with sessions.begin() as session:
            secret = create_api_token(session, scope_of(user), name="test", now=clock.now)[1]
        self._environ = {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret}

    def __call__(self, *arguments: str) -> Result:
        return run_vedette("advice", *arguments, environ=self._environ)


def test_advice_is_listed_dismissed_and_restored(
    *, url: str, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    advice = Command(url, sessions, cast.alice, clock)
    assert "No figures are computed yet" in advice().stderr
    with sessions.begin() as session:
        add_advice(session, cast, now=NOON)
    assert "There is nothing to advise" in advice().stderr
    assert advice("restore", KEY).stdout == f"{KEY} is shown again.\n"
    assert advice("restore", KEY).returncode == 1
    printed = advice("ls", "--evidence").stdout
    assert KEY in printed
    assert "Jobs asked for 448 GPU-hours more" in printed
    assert "Add an appliance like dgx-01." in printed
    assert advice("dismiss", KEY).stdout.startswith(f"Dismissed {KEY} until 2026-04-01T12:00:00")
    assert advice("dismiss", "short:B200").returncode == 1


def test_figures_are_printed_and_requested(
    *, url: str, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        add_advice(session, cast, now=NOON)
    advice = Command(url, sessions, cast.alice, clock)
    models = advice("models").stdout.splitlines()
    assert models[0].split()[:4] == ["MODEL", "GPUS", "CAPACITY", "ALLOCATED"]
    assert (
        models[1].split()[-11:]
        == [
            *("8", "2,688.0", "2,688.0", "0.0", "0.0", "0.0", "448.0", "448.0"),
            *("-", "-", "-", "-"),
        ][-11:]
    )
    additions = [line.split() for line in advice("additions").stdout.splitlines()]
    assert additions[1:] == [
        ["as", "today", "2h", "4h", "448.0"],
        ["one", "more", "dgx-01", "0s", "1m", "0.5"],
    ]
    assert advice("appliances").returncode == 0
    assert "in the background" in advice("compute", "--no-wait").stdout
    operator = Command(url, sessions, cast.olivia, clock)
    assert operator("tenants").stdout.splitlines()[1].split()[:2] == ["Acme", "8"]
    assert advice("tenants").returncode == 1
