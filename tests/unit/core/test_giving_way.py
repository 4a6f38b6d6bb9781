"""Long requests wait for short ones between their statements, and go on however many come."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from core import turns
from core.turns import Requests, give_way

LONG_SECONDS = 60.0


class Recorded(Requests):
    """Notes how long a request would wait at most, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, most_seconds: float) -> float:
        self.waits.append(most_seconds)
        return most_seconds


def test_a_long_request_waits_until_the_short_one_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "LEAST_WAIT_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(turns, "SHORT_SECONDS", LONG_SECONDS)
    requests, has_begun, order = Requests(), threading.Event(), []

    def answer() -> None:
        with requests.answering(is_long=True):
            has_begun.set()
            give_way()
            order.append("long")

    with ThreadPoolExecutor(1) as pool:
        with requests.answering():
            answered = pool.submit(answer)
            has_begun.wait(LONG_SECONDS)
            order.append("short")
        answered.result(LONG_SECONDS)
    assert order == ["short", "long"]


def test_it_goes_on_beside_a_short_one_that_waits_for_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "LEAST_WAIT_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(turns, "SHORT_SECONDS", 0.0)
    requests = Requests()
    with requests.answering(), requests.answering(is_long=True):
        give_way()


def test_its_waits_are_bounded_by_what_it_has_computed() -> None:
    requests = Recorded()
    with requests.answering(), requests.answering(is_long=True):
        give_way()
        give_way()
    first, second = requests.waits
    assert turns.LEAST_WAIT_SECONDS < first < LONG_SECONDS
    assert second < turns.LEAST_WAIT_SECONDS


def test_a_request_is_long_once_it_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Recorded()
    with requests.answering():
        give_way()
        assert requests.waits == []
        monkeypatch.setattr(turns, "SHORT_CPU_SECONDS", 0.0)
        give_way()
    assert len(requests.waits) == 1


def test_two_long_requests_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LEAST_WAIT_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(turns, "SHORT_CPU_SECONDS", 0.0)
    requests = Requests()
    with requests.answering(is_long=True), requests.answering():
        give_way()


def test_a_long_request_waits_before_a_statement(engine: Engine) -> None:
    requests = Recorded()
    with requests.answering(is_long=True), engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        connection.execute(text("SELECT 1"))
    assert len(requests.waits) == 2


@pytest.mark.parametrize("statement", ["DELETE FROM tenants", "SELECT 1 /* FOR UPDATE */"])
def test_it_does_not_wait_while_it_has_locked_something(engine: Engine, statement: str) -> None:
    requests = Recorded()
    with requests.answering(is_long=True):
        with engine.begin() as connection:
            connection.execute(text(statement))
            count = len(requests.waits)
            connection.execute(text("SELECT 1"))
        assert len(requests.waits) == count
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        assert len(requests.waits) == count + 1


def test_what_is_no_request_does_not_wait() -> None:
    give_way()
