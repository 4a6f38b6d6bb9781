"""Searching logs of jobs, lines of appliances and events, wherever they are stored by now."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, joinedload

from core.clock import to_ns
from core.db import SessionFactory
from core.errors import InvalidInputError, NotFoundError
from jobqueue.jobs.gangs import gang_members
from jobqueue.logs.log_files import LogFiles, move_logs, sweep_files
from jobqueue.models import Attempt
from logs import search as log_search
from logs.lines import Source
from logs.packing import bound_files, index_job_logs, pack_lines, sweep_lines
from logs.query import Cursor
from logs.search import FoundLine, count_lines, search
from protocol.attempts import ObservedState
from protocol.lines import LogLevel
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import append_log, report, start
from tests.unit.logs.lines import DAY, Searcher, line, record, send

JOB_LINES = (
    record("epoch 1 loss=0.91", second=1)
    + record("WARNING: slow data loader", second=2, stream="stderr")
    + record("\x1b[31mERROR\x1b[0m: CUDA out of memory", second=3, stream="stderr")
)


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    return LogFiles(str(tmp_path / "logs"))


def start_attempt(session: Session, cast: Cast) -> str:
    started = start(session, cast)
    append_log(session, started, JOB_LINES)
    return started.id


@pytest.fixture
def attempt(prefill: Callable[[Fill], str], sessions: SessionFactory) -> Attempt:
    """A running attempt with three lines."""
    ident = prefill(start_attempt)
    with sessions() as session:
        return session.get_one(Attempt, ident, options=[joinedload(Attempt.appliance)])


@pytest.fixture
def alice(sessions: SessionFactory, files: LogFiles, cast: Cast) -> Searcher:
    return Searcher(sessions, files, scope_of(cast.alice))


def finish(sessions: SessionFactory, attempt: Attempt) -> None:
    with sessions.begin() as session:
        report(session, session.get_one(Attempt, attempt.id), ObservedState.SUCCEEDED)


def test_a_log_is_found_while_it_is_live_in_a_file_and_indexed(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, alice: Searcher
) -> None:
    jobs = frozenset({Source.JOB})
    live = alice.page(sources=jobs).lines
    assert [line_found.text for line_found in live] == [
        "ERROR: CUDA out of memory",
        "WARNING: slow data loader",
        "epoch 1 loss=0.91",
    ]
    assert [line_found.level for line_found in live] == [
        LogLevel.ERROR,
        LogLevel.WARNING,
        LogLevel.INFO,
    ]
    assert {(line_found.job, line_found.attempt, line_found.appliance) for line_found in live} == {
        (attempt.job_id, 1, attempt.appliance_id)
    }
    finish(sessions, attempt)
    assert move_logs(sessions, files, now=NOON + DAY) == 1
    assert alice.page(sources=jobs).lines == live
    assert index_job_logs(sessions, files, now=NOON + DAY) == 1
    assert index_job_logs(sessions, files, now=NOON + DAY) == 0
    assert alice.page(sources=jobs).lines == live
    assert sweep_files(sessions, files) == 0
    assert alice.texts("memory", sources=jobs) == ["ERROR: CUDA out of memory"]


def test_lines_of_appliances_read_the_same_from_database_and_file(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, alice: Searcher
) -> None:
    appliance = attempt.appliance
    lines = (
        line("NVRM: Xid (PCI:0000:17:00): 79", second=5, level=LogLevel.ERROR, unit="kernel"),
        line("eth0: link down", second=6, unit="kernel"),
    )
    assert send(sessions, appliance, *lines) == 1
    assert send(sessions, appliance, *lines) == 0  # its answer was lost
    source = frozenset({Source.APPLIANCE})
    stored = alice.page(sources=source).lines
    assert [line_found.text for line_found in stored] == ["eth0: link down", lines[0].text]
    assert pack_lines(sessions, files, now=NOON + timedelta(minutes=40)) == 0
    assert pack_lines(sessions, files, now=NOON + timedelta(hours=2)) == 2
    assert alice.page(sources=source).lines == stored
    assert alice.texts("xid", minimum_level=LogLevel.ERROR, unit="kernel") == [lines[0].text]
    assert sweep_lines(sessions, files, now=NOON + 9999 * DAY) == 0
    assert sweep_files(sessions, files) == 0
    bounds = {"max_bytes": 10**9, "now": NOON + 3 * DAY}
    assert bound_files(sessions, files, max_age=7 * DAY, **bounds) == 0  # type: ignore[arg-type]
    assert bound_files(sessions, files, max_age=DAY, **bounds) == 1  # type: ignore[arg-type]
    assert alice.texts(sources=source) == []


def test_a_file_that_nothing_names_is_swept_when_it_is_old(
    sessions: SessionFactory, files: LogFiles, cast: Cast
) -> None:
    name = f"{cast.acme.id}/appliances/0195f000-0000-7000-8000-000000000000.parquet"
    files.write(name, iter([b"left by a crash"]))
    at_ms = 0x0195F0000000
    written_at = NOON.fromtimestamp(at_ms / 1000, tz=NOON.tzinfo)
    assert sweep_lines(sessions, files, now=written_at + timedelta(minutes=30)) == 0
    assert sweep_lines(sessions, files, now=written_at + timedelta(hours=2)) == 1


def test_pages_have_every_line_once_in_both_directions(
    sessions: SessionFactory, attempt: Attempt, alice: Searcher
) -> None:
    texts = [f"line {number}" for number in range(50)]
    for batch in range(5):
        own = texts[batch::5]
        lines = [line(text, second=int(text[5:]) // 4) for text in own]  # four of each moment
        send(sessions, attempt.appliance, *lines, key=f"batch-{batch:016}")
    for is_oldest_first in (True, False):
        seen: list[FoundLine] = []
        cursor = None
        query: dict[str, Any] = {"is_oldest_first": is_oldest_first}
        query["sources"] = frozenset({Source.APPLIANCE})
        while True:
            page = alice.page(limit=7, cursor=cursor, **query)
            seen += page.lines
            assert page.is_complete
            if page.next is None:
                break
            cursor = Cursor.parse(page.next)
        assert sorted(line_found.text for line_found in seen) == sorted(texts)
        assert len({line_found.id for line_found in seen}) == len(texts)
        times = [line_found.at_ns for line_found in seen]
        assert times == sorted(times, reverse=not is_oldest_first)


def test_a_cursor_of_many_delivered_lines_is_refused(
    sessions: SessionFactory,
    attempt: Attempt,
    alice: Searcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidInputError, match="is not the `next` of a page"):
        Cursor.parse(str(Cursor(5, 2**30)))

    monkeypatch.setattr(log_search, "MAX_DELIVERED", 3)
    same = [line(f"same {number}", second=1) for number in range(6)]
    send(sessions, attempt.appliance, *same, line("later", second=2), key=f"{1:016}")
    query: dict[str, Any] = {"sources": frozenset({Source.APPLIANCE}), "is_oldest_first": True}
    first = alice.page(limit=4, cursor=None, **query)
    assert [matching.text for matching in first.lines] == [f"same {number}" for number in range(4)]
    assert "the same time" in first.problems[0]
    second = alice.page(limit=4, cursor=Cursor.parse(first.next or ""), **query)
    assert [matching.text for matching in second.lines] == ["later"]


def test_a_search_whose_time_is_up_continues_without_a_gap(
    sessions: SessionFactory, attempt: Attempt, alice: Searcher
) -> None:
    for number in range(6):
        send(
            sessions, attempt.appliance, line(f"line {number}", second=number), key=f"{number:016}"
        )
    query = alice.query(sources=frozenset({Source.APPLIANCE}))
    page = search(query, alice.sources.blocks, seconds=-1)
    assert not page.is_complete
    assert page.next is not None
    rest = search(replace(query, cursor=Cursor.parse(page.next)), alice.sources.blocks)
    texts = [line_found.text for line_found in [*page.lines, *rest.lines]]
    assert texts == [f"line {number}" for number in (5, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("cuda", True),
        ("CUDA memory", True),
        ('"out of memory"', True),
        ('"of out"', False),
        ("mem", False),
        ("mem*", True),
        ("/[Mm]emory$/", True),
        ("/cuda/", False),
        ("/(?i)cuda/", True),
        ("error:", True),
        ("-cuda", False),
        ("cuda -epoch", True),
        ("-/epoch|WARN/ -loader", True),
    ],
)
def test_words_phrases_and_expressions(
    sessions: SessionFactory,
    files: LogFiles,
    attempt: Attempt,
    alice: Searcher,
    *,
    text: str,
    matches: bool,
) -> None:
    finish(sessions, attempt)
    move_logs(sessions, files, now=NOON + DAY)
    index_job_logs(sessions, files, now=NOON + DAY)
    assert ("ERROR: CUDA out of memory" in alice.texts(text)) is matches


@pytest.mark.parametrize("text", ['"no end', "/(/", "/a{2000}/", "x" * 501])
def test_a_search_that_can_not_be_parsed_is_refused(alice: Searcher, text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        alice.texts(text)
    assert "search" in error.value.errors


def test_another_tenant_finds_nothing(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast
) -> None:
    send(sessions, attempt.appliance, line("secret of acme"))
    charlie = Searcher(sessions, files, scope_of(cast.charlie))
    assert charlie.texts() == []
    with pytest.raises(NotFoundError):
        charlie.texts(job_id=attempt.job_id)
    with pytest.raises(NotFoundError):
        charlie.texts(appliance_id=attempt.appliance_id)
    olivia = Searcher(sessions, files, scope_of(cast.olivia))
    assert "secret of acme" in olivia.texts()


def test_events_of_jobs_are_found_and_the_audit_log_by_admins_alone(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, cast: Cast
) -> None:
    finish(sessions, attempt)
    alice = Searcher(sessions, files, scope_of(cast.alice))
    bob = Searcher(sessions, files, scope_of(cast.bob))
    events = frozenset({Source.EVENT})
    assert "job succeeded" in " ".join(bob.texts(sources=events, job_id=attempt.job_id))
    audit = frozenset({Source.AUDIT})
    assert bob.texts(sources=audit) == []
    assert alice.page(sources=audit).is_complete


@pytest.mark.usefixtures("attempt")
def test_counts_over_time_are_those_of_the_lines(alice: Searcher) -> None:
    query = replace(
        alice.query("-epoch", sources=frozenset({Source.JOB})),
        start_ns=to_ns(NOON),
        end_ns=to_ns(NOON + timedelta(seconds=4)),
    )
    histogram = count_lines(query, alice.sources.blocks, buckets=4)
    assert histogram.is_complete
    assert histogram.counts[LogLevel.WARNING] == [0, 0, 1, 0]
    assert histogram.counts[LogLevel.ERROR] == [0, 0, 0, 1]
    assert sum(map(sum, histogram.counts.values())) == 2


def test_a_damaged_file_is_named_and_the_others_are_read(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, alice: Searcher, tmp_path: Path
) -> None:
    send(sessions, attempt.appliance, line("before"))
    pack_lines(sessions, files, now=NOON + timedelta(hours=2))
    [path] = (tmp_path / "logs").rglob("appliances/*.parquet")
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF
    path.write_bytes(content)
    send(sessions, attempt.appliance, line("after", second=9), key="k" * 17)
    page = alice.page(sources=frozenset({Source.APPLIANCE}))
    assert [line_found.text for line_found in page.lines] == ["after"]
    assert [path.name in problem for problem in page.problems] == [True]


def test_a_damaged_file_of_a_job_is_written_again_from_its_log(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, alice: Searcher, tmp_path: Path
) -> None:
    finish(sessions, attempt)
    move_logs(sessions, files, now=NOON + DAY)
    query: dict[str, Any] = {"sources": frozenset({Source.JOB})}
    for at in (20, -20):  # a block, and the index at the end
        index_job_logs(sessions, files, now=NOON + DAY)
        [path] = (tmp_path / "logs").rglob("1.parquet")
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)
        assert "can't be read" in alice.page(**query).problems[0]
        # Until it is, the search reads the log.
        page = alice.page(**query)
        assert (len(page.lines), page.problems) == (3, ())
    assert index_job_logs(sessions, files, now=NOON + DAY) == 1
    assert len(alice.page(**query).lines) == 3


@pytest.mark.usefixtures("attempt")
def test_too_many_logs_are_reported(alice: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.sources.MAX_FILES", 1)
    page = alice.page(sources=frozenset({Source.JOB}))
    assert len(page.lines) == 3
    assert ["only the newest 1 logs of jobs" in problem for problem in page.problems] == [True]


def test_a_log_that_is_missing_does_not_keep_others_from_being_indexed(
    sessions: SessionFactory, files: LogFiles, attempt: Attempt, alice: Searcher, tmp_path: Path
) -> None:
    finish(sessions, attempt)
    move_logs(sessions, files, now=NOON + DAY)
    [path] = (tmp_path / "logs").rglob("*.log")
    content = path.read_bytes()
    path.unlink()
    assert index_job_logs(sessions, files, now=NOON + DAY) == 0
    path.write_bytes(content)
    assert index_job_logs(sessions, files, now=NOON + DAY) == 1
    assert alice.texts("memory", sources=frozenset({Source.JOB})) == ["ERROR: CUDA out of memory"]


def test_the_first_member_of_a_gang_stands_for_the_gang(
    sessions: SessionFactory, cast: Cast, alice: Searcher
) -> None:
    with sessions.begin() as session:
        first = start(session, cast, nodes=2).job
        members = gang_members(session, first)
        for member in members:
            text = record(f"loss of rank {member.array_index}", second=1)
            append_log(session, member.attempts[-1], text)
        ids = [member.id for member in members]
    jobs = frozenset({Source.JOB})
    assert len(alice.texts("loss", sources=jobs, job_id=ids[0])) == 2
    assert len(alice.texts("loss", sources=jobs, job_id=ids[1])) == 1
    for rank in (0, 1):
        texts = alice.texts("loss", sources=jobs, job_id=ids[0], rank=rank)
        assert [text.partition("loss")[1:] for text in texts] == [("loss", f" of rank {rank}")]
    assert alice.texts("loss", sources=jobs, job_id=ids[0], rank=2) == []
    assert len(alice.texts("loss", sources=jobs, job_id=ids[1], rank=0)) == 1
