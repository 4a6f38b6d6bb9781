"""Forwarding: what arrives goes to each target once, in its format, through failures."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from core.db import SessionFactory
from core.errors import InvalidInputError, NotFoundError
from jobqueue.models import Attempt
from logs.forwarding.forwarder import forward_due
from logs.forwarding.queue import queue_output, trim_queue
from logs.forwarding.sending import ForwardSender
from logs.forwarding.service import (
    ForwardRequest,
    create_forward,
    delete_forward,
    get_forward,
    update_forward,
)
from logs.lines import Source
from logs.models import ForwardBatch, ForwardKind, LogForward
from protocol.attempts import LogChunk
from protocol.lines import LineEvent, LogLevel
from tests.cast import BOX, NOON, Cast, scope_of
from tests.conftest import Fill
from tests.fixtures.certificates import Authority, Pair
from tests.fixtures.polling import eventually
from tests.servers import free_port
from tests.unit.alerting.servers import LOOPBACK, Hook, hook_server
from tests.unit.jobqueue.builders import append_log, start
from tests.unit.logs.lines import line, record, send

LATER = NOON + timedelta(hours=1)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_server() as hook:
        yield hook


def start_attempt(session: Session, cast: Cast) -> str:
    return start(session, cast).id


@pytest.fixture
def attempt(prefill: Callable[[Fill], str], sessions: SessionFactory) -> Attempt:
    ident = prefill(start_attempt)
    with sessions() as session:
        return session.get_one(Attempt, ident, options=[joinedload(Attempt.appliance)])


@dataclass
class Target:
    """A target of acme, and what sends to it."""

    sessions: SessionFactory
    cast: Cast
    ident: str

    @classmethod
    def of(
        cls,
        sessions: SessionFactory,
        cast: Cast,
        kind: ForwardKind,
        url: str,
        **changes: Any,  # noqa: ANN401
    ) -> "Target":
        request = ForwardRequest(name=kind.value, kind=kind, url=url, **changes)
        with sessions.begin() as session:
            scope = scope_of(cast.alice)
            return cls(
                sessions, cast, create_forward(session, scope, request, box=BOX, now=NOON).id
            )

    def forward(self, *, minutes: float = 0, timeout_seconds: float = 5.0) -> int:
        sender = ForwardSender(timeout_seconds, box=BOX, policy=LOOPBACK)
        return forward_due(self.sessions, sender, now=LATER + timedelta(minutes=minutes))

    @property
    def row(self) -> LogForward:
        with self.sessions.begin() as session:
            return get_forward(session, scope_of(self.cast.alice), self.ident)


def print_lines(sessions: SessionFactory, attempt: Attempt, data: bytes, offset: int = 0) -> None:
    """Store output of a job as the agent API does."""
    with sessions.begin() as session:
        ack = append_log(session, session.get_one(Attempt, attempt.id), data, offset=offset)
        chunk = LogChunk(attempt_id=attempt.id, offset=offset, data=data)
        queue_output(session, [chunk], [ack], now=NOON)


def fill(sessions: SessionFactory, attempt: Attempt) -> None:
    """One line of the kernel, two of a job."""
    xid = line(
        'NVRM: "Xid" 79',
        second=1,
        unit="kernel",
        level=LogLevel.ERROR,
        event=LineEvent.XID,
        subject="0000:17:00",
    )
    send(sessions, attempt.appliance, xid)
    print_lines(
        sessions,
        attempt,
        record("epoch 1", second=2) + record("WARNING: slow", second=3, stream="stderr"),
    )


def test_otlp_gets_what_its_schema_allows(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(sessions, cast, ForwardKind.OTLP, hook.url, token="secret")
    fill(sessions, attempt)
    assert target.forward() == 3
    assert target.forward() == 0
    [(headers, body)] = hook.posts
    assert headers["Authorization"] == "Bearer secret"
    request = Parse(body, ExportLogsServiceRequest())
    records = {
        entry.body.string_value: entry
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for entry in scope.log_records
    }
    assert records.keys() == {'NVRM: "Xid" 79', "epoch 1", "WARNING: slow"}
    xid = records['NVRM: "Xid" 79']
    assert (xid.severity_number, xid.time_unix_nano % 10**10) == (17, 1_000_000_000)
    attributes = {entry.key: entry.value.string_value for entry in xid.attributes}
    assert attributes["vedette.subject"] == "0000:17:00"
    hosts = {
        entry.value.string_value
        for resource in request.resource_logs
        for entry in resource.resource.attributes
        if entry.key == "host.name"
    }
    assert hosts == {"dgx-01"}


def test_loki_gets_streams_by_labels(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(sessions, cast, ForwardKind.LOKI, hook.url, minimum_level=LogLevel.WARNING)
    fill(sessions, attempt)
    assert target.forward() == 2
    [(_, body)] = hook.posts
    streams = json.loads(body)["streams"]
    assert {stream["stream"]["service_name"] for stream in streams} == {"kernel", "train"}
    [[time_ns, text]] = next(
        stream["values"] for stream in streams if stream["stream"]["source"] == "job"
    )
    assert (text, time_ns[-10:]) == ("WARNING: slow", "3000000000")


def test_elasticsearch_gets_documents_once_and_refused_lines_are_counted(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(
        sessions, cast, ForwardKind.ELASTICSEARCH, f"{hook.url}/logs", token="ApiKey abc"
    )
    fill(sessions, attempt)
    statuses = [{"create": {"status": status}} for status in (201, 409, 400)]
    hook.status, hook.content = 200, json.dumps({"errors": True, "items": statuses}).encode()
    assert target.forward() == 2
    [(headers, body)] = hook.posts
    assert headers["Authorization"] == "ApiKey abc"
    rows = [json.loads(row) for row in body.splitlines()]
    assert len({row["create"]["_id"] for row in rows[::2]}) == 3
    assert {row["log.level"] for row in rows[1::2]} == {"error", "info", "warning"}
    assert (target.row.sent_lines, target.row.refused_lines) == (2, 1)


@pytest.mark.parametrize("kind", [ForwardKind.OTLP, ForwardKind.ELASTICSEARCH])
@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"<html>",
        b'{"partialSuccess": [1], "errors": true, "items": [1]}',
        b'{"partialSuccess": {"rejectedLogRecords": "x"}, "items": [{"create": 1}]}',
        b'{"partialSuccess": null, "errors": true, "items": [{}]}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_something_else_refuses_nothing(
    sessions: SessionFactory,
    cast: Cast,
    hook: Hook,
    attempt: Attempt,
    *,
    kind: ForwardKind,
    answer: bytes,
) -> None:
    target = Target.of(sessions, cast, kind, hook.url)
    fill(sessions, attempt)
    hook.status, hook.content = 200, answer
    assert target.forward() == 3


def test_a_target_that_writes_without_end_holds_up_no_other(
    sessions: SessionFactory, cast: Cast, attempt: Attempt
) -> None:
    def write(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while True:
                connection.sendall(b"x" * 100_000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: write(server.accept()[0]))
        thread.start()
        url = f"syslog://127.0.0.1:{server.getsockname()[1]}"
        target = Target.of(sessions, cast, ForwardKind.SYSLOG, url)
        fill(sessions, attempt)
        assert target.forward(timeout_seconds=0.2) == 3
        thread.join()


def test_a_target_that_is_away_gets_everything_later_and_says_why(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(sessions, cast, ForwardKind.LOKI, hook.url)
    fill(sessions, attempt)
    hook.status = 503
    assert target.forward() == 0
    assert "503" in target.row.last_error
    hook.status = 204
    assert target.forward() == 0  # not due yet
    assert target.forward(minutes=1) == 3
    assert (target.row.failures, target.row.last_error) == (0, "")
    assert hook.posts[0][1] == hook.posts[1][1]


def test_a_full_queue_drops_the_oldest_and_counts_them(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(sessions, cast, ForwardKind.LOKI, hook.url)
    fill(sessions, attempt)
    with sessions.begin() as session:
        assert trim_queue(session, max_bytes=10**6) == 0
        last = session.scalars(select(ForwardBatch).order_by(ForwardBatch.id.desc())).first()
        assert last is not None
        assert trim_queue(session, max_bytes=last.size_bytes) == 1
    assert target.forward() == 2
    assert target.row.dropped_lines == 1
    with sessions.begin() as session:
        trim_queue(session, max_bytes=10**6)
        assert session.scalar(select(func.count()).select_from(ForwardBatch)) == 0


def test_without_a_target_nothing_is_queued(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    target = Target.of(sessions, cast, ForwardKind.LOKI, hook.url, is_enabled=False)
    fill(sessions, attempt)
    with sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(ForwardBatch)) == 0
        request = ForwardRequest(name="on", kind=ForwardKind.LOKI, url=hook.url)
        update_forward(session, scope_of(cast.alice), target.ident, request, box=BOX, now=NOON)
    print_lines(sessions, attempt, record("new", second=9), offset=_size(sessions, attempt))
    assert target.forward() == 1


def test_a_private_address_is_not_reached(
    sessions: SessionFactory, cast: Cast, attempt: Attempt
) -> None:
    loki = Target.of(sessions, cast, ForwardKind.LOKI, "http://10.1.2.3:9")
    syslog = Target.of(sessions, cast, ForwardKind.SYSLOG, "syslog://10.1.2.3:9")
    fill(sessions, attempt)
    assert loki.forward() == 0
    assert "private network" in loki.row.last_error
    assert "private network" in syslog.row.last_error


def test_settings_are_checked_and_other_tenants_see_nothing(
    sessions: SessionFactory, cast: Cast, hook: Hook
) -> None:
    target = Target.of(sessions, cast, ForwardKind.LOKI, hook.url)
    with sessions.begin() as session:
        wrong = ForwardRequest(
            name="", kind=ForwardKind.SYSLOG, url="http://x", sources=[Source.AUDIT]
        )
        with pytest.raises(InvalidInputError) as error:
            create_forward(session, scope_of(cast.alice), wrong, box=BOX, now=NOON)
        assert error.value.errors.keys() == {"name", "url", "sources"}
        with pytest.raises(NotFoundError):
            delete_forward(session, scope_of(cast.charlie), target.ident)


class SecureReceiver:
    """Reads messages of syslog over TLS as RFC 5425 frames them, after some time.

    Attributes:
        messages: what it has read of each connection that ended as it should.
    """

    def __init__(self, pair: Pair, *, delay_seconds: float) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._context = context
        self._delay_seconds = delay_seconds
        self.messages: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"syslogs://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._socket.accept()
                with (
                    suppress(ssl.SSLError),
                    self._context.wrap_socket(plain, server_side=True) as tls,
                ):
                    time.sleep(self._delay_seconds)
                    received = b""
                    while part := tls.recv(1000):  # raises unless TLS ends as it should
                        received += part
                    while received:
                        size, _, received = received.partition(b" ")
                        self.messages.append(received[: int(size)])
                        received = received[int(size) :]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority that this host trusts."""
    authority = Authority(tmp_path / "ca", "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return authority


def test_syslog_over_tls_gets_whole_messages_and_an_orderly_end(
    sessions: SessionFactory, cast: Cast, attempt: Attempt, authority: Authority
) -> None:
    receiver = SecureReceiver(authority.issue("server"), delay_seconds=0.3)
    target = Target.of(sessions, cast, ForwardKind.SYSLOG, receiver.url)
    fill(sessions, attempt)
    print_lines(
        sessions, attempt, record("x" * 30_000 + "é", second=3), offset=_size(sessions, attempt)
    )
    assert target.forward() == 4
    receiver.close()
    assert len(receiver.messages) == 4
    assert any(b'NVRM: "Xid" 79' in message for message in receiver.messages)
    assert any(message.endswith("xé".encode()) for message in receiver.messages)
    assert all(message.startswith(b"<") for message in receiver.messages)


def test_syslog_over_tls_to_an_unknown_authority_says_so_and_waits(
    sessions: SessionFactory, cast: Cast, attempt: Attempt, tmp_path: Path
) -> None:
    unknown = Authority(tmp_path / "unknown", "unknown")
    receiver = SecureReceiver(unknown.issue("server"), delay_seconds=0)
    target = Target.of(sessions, cast, ForwardKind.SYSLOG, receiver.url)
    fill(sessions, attempt)
    assert target.forward() == 0
    receiver.close()
    assert "certificate" in target.row.last_error
    assert receiver.messages == []


def _size(sessions: SessionFactory, attempt: Attempt) -> int:
    with sessions.begin() as session:
        return session.get_one(Attempt, attempt.id).log_bytes


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(params=["syslog", "syslogs"])
def rsyslog(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A real rsyslog that writes what it parses into a file."""
    program = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
    if not Path(program).exists():
        pytest.skip("Debian package rsyslog")
    port, out = free_port(), tmp_path / "out"
    tls = ""
    if request.param == "syslogs":
        if not any(Path("/usr/lib").glob("*/rsyslog/lmnsd_gtls.so")):
            pytest.skip("Debian package rsyslog-gnutls")
        authority = request.getfixturevalue("authority")
        pair = authority.issue("rsyslog")
        tls = (
            f'global(DefaultNetstreamDriverCAFile="{authority.certificate}" '
            f'DefaultNetstreamDriverCertFile="{pair.certificate}" '
            f'DefaultNetstreamDriverKeyFile="{pair.key}")\n'
        )
        driver = ' StreamDriver.Name="gtls" StreamDriver.Mode="1" StreamDriver.AuthMode="anon"'
    else:
        driver = ""
    (tmp_path / "conf").write_text(
        f'''{tls}module(load="imtcp"{driver})
input(type="imtcp" port="{port}" address="127.0.0.1")
template(name="parsed" type="string"
  string="%pri%|%timestamp:::date-rfc3339%|%hostname%|%app-name%|%msgid%|%structured-data%|%msg%\\n")
action(type="omfile" file="{out}" template="parsed")
''',
        encoding="utf-8",
    )
    command = [program, "-n", "-f", str(tmp_path / "conf"), "-i", str(tmp_path / "pid")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _answers(port), what="rsyslog")
            yield (
                f"{request.param}://127.0.0.1:{port}",
                lambda: out.read_text("utf-8").splitlines() if out.exists() else [],
            )
        finally:
            process.terminate()


def test_rsyslog_parses_what_syslog_targets_get(
    sessions: SessionFactory,
    cast: Cast,
    attempt: Attempt,
    rsyslog: tuple[str, Callable[[], list[str]]],
) -> None:
    url, parsed = rsyslog
    target = Target.of(sessions, cast, ForwardKind.SYSLOG, url)
    fill(sessions, attempt)
    assert target.forward() == 3
    rows = eventually(lambda: parsed() if len(parsed()) == 3 else None)
    assert rows is not None
    priority, at, host, app, kind, data, text = next(row for row in rows if "Xid" in row).split("|")
    assert (priority, host, app, kind) == ("3", "dgx-01", "kernel", "xid")
    assert at.startswith("2026-03-02T12:00:01")
    assert 'subject="0000:17:00"' in data
    assert text.strip() == 'NVRM: "Xid" 79'


def test_output_that_is_sent_again_at_an_old_offset_is_not_queued_as_a_whole(
    sessions: SessionFactory, cast: Cast, hook: Hook, attempt: Attempt
) -> None:
    Target.of(sessions, cast, ForwardKind.LOKI, hook.url)
    first, second = record("first", second=1), record("second", second=2)
    print_lines(sessions, attempt, first)
    print_lines(sessions, attempt, second, offset=len(first))
    print_lines(sessions, attempt, first)  # its answer was lost
    with sessions.begin() as session:
        rows = session.scalars(select(ForwardBatch).order_by(ForwardBatch.id)).all()
        assert [row.data.encode() for row in rows] == [first, second]
