import threading

import pytest

from core.errors import OverloadedError
from timeseries.points import Batch, Point
from timeseries.store import StoreUnavailableError
from timeseries.write_queue import Linger, Submission, Task, WriteQueue


def submission(points: int) -> Submission:
    return Submission(Batch.of([Point("m", {}, {"f": 1.0}, 1)] * points), {})


def queue(
    *, max_points: int = 100, max_group_points: int = 100, linger: Linger | None = None
) -> WriteQueue:
    return WriteQueue(max_points=max_points, max_group_points=max_group_points, linger=linger)


def test_waiting_submissions_are_grouped_in_order() -> None:
    waiting = queue()
    items = [submission(1), submission(2), submission(3)]
    for item in items:
        waiting.put(item)

    assert waiting.take() == items


def test_a_group_ends_when_it_is_large_enough() -> None:
    waiting = queue(max_group_points=3)
    items = [submission(2), submission(2), submission(2)]
    for item in items:
        waiting.put(item)

    assert [waiting.take(), waiting.take()] == [items[:2], items[2:]]


def test_a_task_runs_alone_and_in_order() -> None:
    waiting = queue()
    before, chore, after = submission(1), Task(lambda: None), submission(1)
    for item in (before, chore, after):
        waiting.put(item)

    assert [waiting.take(), waiting.take(), waiting.take()] == [[before], chore, [after]]


def test_points_over_the_limit_are_rejected_until_some_are_written() -> None:
    waiting = queue(max_points=10)
    waiting.put(submission(8))
    with pytest.raises(OverloadedError, match="8 points are waiting, the limit is 10"):
        waiting.put(submission(3))

    waiting.take()
    waiting.put(submission(3))

    assert waiting.take() is not None


def test_an_empty_queue_accepts_a_body_over_the_limit() -> None:
    waiting = queue(max_points=10)

    waiting.put(submission(50))

    assert waiting.take() is not None


def test_a_closed_queue_hands_out_what_waits_and_then_nothing() -> None:
    waiting = queue()
    item = submission(1)
    waiting.put(item)
    waiting.close()

    assert [waiting.take(), waiting.take()] == [[item], None]
    with pytest.raises(StoreUnavailableError, match="closed"):
        waiting.put(submission(1))


def test_closing_wakes_the_taker() -> None:
    waiting = queue()
    taker = threading.Thread(target=waiting.take)
    taker.start()

    waiting.close()
    taker.join(timeout=60)

    assert not taker.is_alive()


def test_a_lone_sender_never_waits_for_company() -> None:
    waiting = queue(linger=Linger(gap_seconds=600, max_seconds=600))
    for _ in range(3):
        waiting.put(submission(1))

        group = waiting.take()

        assert isinstance(group, list)
        assert len(group) == 1


def test_senders_of_few_points_do_not_wait_for_each_other() -> None:
    waiting = queue(linger=Linger(gap_seconds=600, max_seconds=600, from_points_per_second=50))
    for _ in range(3):
        items = [submission(1), submission(2)]
        for item in items:
            waiting.put(item)

        assert waiting.take() == items


def test_what_comes_while_senders_are_busy_joins_the_group() -> None:
    linger = Linger(gap_seconds=600, max_seconds=600, from_points_per_second=8)
    waiting = queue(linger=linger, max_group_points=10)
    for _ in range(2):
        waiting.put(submission(5))
    waiting.take()
    waiting.put(submission(1))
    group: list[object] = []
    taker = threading.Thread(target=lambda: group.append(waiting.take()))
    taker.start()

    late = [submission(4), submission(5)]
    for item in late:
        waiting.put(item)
    taker.join(timeout=60)

    # Ten points are a whole group: it did not wait for more.
    assert not taker.is_alive()
    assert [len(submissions) for submissions in group if isinstance(submissions, list)] == [3]


def test_gathering_ends_when_nothing_came_for_a_while() -> None:
    waiting = queue(linger=Linger(gap_seconds=0.001, max_seconds=600))
    for _ in range(2):
        waiting.put(submission(1))
    waiting.take()
    last = submission(1)
    waiting.put(last)

    assert waiting.take() == [last]


@pytest.mark.parametrize("end", ["chore", "close"])
def test_a_task_or_the_close_does_not_linger(end: str) -> None:
    waiting = queue(linger=Linger(gap_seconds=600, max_seconds=600))
    for _ in range(2):
        waiting.put(submission(1))
    waiting.take()
    waiting.put(submission(1))
    taker = threading.Thread(target=waiting.take)
    taker.start()

    if end == "chore":
        waiting.put(Task(lambda: None))
    else:
        waiting.close()
    taker.join(timeout=60)

    assert not taker.is_alive()
