"""The broker over Redis pub/sub. Redis stores nothing, and may be restarted at any time.

All processes of a portal publish to one channel and are subscribed to it. A *frame* is what is
published at once: the messages of some milliseconds, with the *origin*, by which a process knows
its own, and a code that only processes with the portal's key can compute. One thread keeps the
connections and receives, another sends.
"""

import hashlib
import hmac
import logging
import random
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import redis
from prometheus_client import Counter, Gauge
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.connection import parse_url
from redis.retry import Retry

from core.broker import Broker, BrokerState, redacted_redis_url

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024
MAX_QUEUED_BYTES = 16 * 1024 * 1024
MAX_QUEUED = 50_000
MAX_FRAME_BYTES = 512 * 1024
# What is sent within it is published at once.
PAUSE_SECONDS = 0.005
# An answer takes a millisecond. A host that vanishes closes no connection: its silence tells.
ANSWER_SECONDS = 2.0
QUIET_SECONDS = 0.5
FIRST_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 5.0
CLOSE_SECONDS = 3.0
# Of a URL: which database is no matter, but some providers' URLs name one.
_OPTIONS = frozenset({"db", "username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_CODE_BYTES = 16
# Others who may publish could repeat what they have seen. A frame has the time as its number, which
# grows; the first one of a process is no older than this, so that those of ended processes end.
MAX_AGE_SECONDS = 60.0
MAX_ORIGINS = 10_000

_MESSAGES = Counter(
    "vedette_broker_messages",
    "Messages between processes: sent, received, dropped while Redis was away, malformed, and"
    " repeated or late frames of them.",
    ["outcome"],
)
_SENT, _RECEIVED, _DROPPED, _MALFORMED, _REPEATED = (
    _MESSAGES.labels(outcome)
    for outcome in ("sent", "received", "dropped", "malformed", "repeated")
)
_CONNECTED = Gauge("vedette_broker_connected", "Whether this process is connected to Redis.")

_Message = tuple[str, bytes]
_Frame = tuple[bytes, int, list[_Message]]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Frame)


def redis_url_problem(url: str) -> str:
    """Return what is wrong with the URL of a Redis server, without its password; "" if nothing."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        return "must begin with redis://, rediss:// (TLS) or unix://"
    try:
        options = parse_url(url)  # type: ignore[no-untyped-call]
        _ = parts.port
    except ValueError:
        return (
            "is not a URL: its port must be a number up to 65535, and a password with / ? # @ or : "
            "must be percent-encoded"
        )
    if parts.scheme == "unix":
        if not options.get("path", "").startswith("/"):
            return "needs the path of a socket, such as unix:///run/redis/redis.sock"
    elif not parts.hostname:
        return "needs a host, such as redis://redis.example.com:6379"
    unknown = options.keys() - _OPTIONS - {"host", "port", "path", "connection_class"}
    return f"has the unknown option {min(unknown)[:50]!r}" if unknown else ""


class RedisBroker(Broker):
    """Messages by a Redis server.

    Args:
        url: of the server; see `redis_url_problem`.
        key: 64 bytes that the processes of one portal share.
    """

    def __init__(self, url: str, *, key: bytes) -> None:
        self._url = url
        self._key = key
        self.channel = f"vedette:{hashlib.blake2b(key, digest_size=16).hexdigest()}"
        self._origin = secrets.token_bytes(8)
        self._number = 0
        # The last number of each process, those that were silent longest first.
        self._numbers: dict[bytes, int] = {}
        self._listeners: defaultdict[str, list[Callable[[bytes], None]]] = defaultdict(list)
        self._watchers: list[Callable[[BrokerState], None]] = []
        self._lock = threading.RLock()
        self._state = BrokerState.AWAY
        self._problem = "It has not been reached yet."
        self._queue: deque[_Message] = deque()
        self._queued_bytes = 0
        self._client: redis.Redis | None = None
        self._send_error: Exception | None = None
        self._is_wanted = threading.Event()
        self._is_stopping = threading.Event()
        self._is_tried = threading.Event()

    @property
    def state(self) -> BrokerState:
        """Whether messages arrive."""
        return self._state

    @property
    def problem(self) -> str:
        """Why they don't."""
        return self._problem

    def send(self, channel: str, message: bytes) -> None:
        """Queue a message for all other processes."""
        with self._lock:
            if (
                self._state is not BrokerState.CONNECTED
                or len(message) > MAX_MESSAGE_BYTES
                or len(self._queue) >= MAX_QUEUED
                or self._queued_bytes + len(message) > MAX_QUEUED_BYTES
            ):
                _DROPPED.inc()
                return
            self._queue.append((channel, message))
            self._queued_bytes += len(message)
        self._is_wanted.set()

    def listen(self, channel: str, listener: Callable[[bytes], None]) -> None:
        """Hand messages of other processes to a listener."""
        self._listeners[channel].append(listener)

    def watch(self, listener: Callable[[BrokerState], None]) -> None:
        """Tell a listener of the state, now and when it changes."""
        with self._lock:
            self._watchers.append(listener)
            listener(self._state)

    @contextmanager
    def running(self, *, wait_seconds: float = 0.0) -> Iterator[Self]:
        """Connect, and stay connected, during the block; wait for the first try before."""
        threads = [
            threading.Thread(target=work, name=f"broker {work.__name__}", daemon=True)
            for work in (self._stay_connected, self._send_forever)
        ]
        for thread in threads:
            thread.start()
        self._is_tried.wait(wait_seconds)
        try:
            yield self
        finally:
            self._is_stopping.set()
            self._is_wanted.set()
            for thread in reversed(threads):
                thread.join(CLOSE_SECONDS)

    def _stay_connected(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while not self._is_stopping.is_set():
            try:
                # A connection to publish, and one of the subscription.
                with self._new_client() as client, client.pubsub() as subscription:
                    self._confirm(client, subscription)
                    self._become_connected(client)
                    delay = FIRST_RETRY_SECONDS
                    self._receive(subscription)
            except (redis.RedisError, OSError) as error:
                self._become_away(str(error))
            except Exception as error:
                log.exception("the connection to Redis failed")
                self._become_away(f"{type(error).__name__}: see the server's log")
            # Jittered: all processes notice its end at once.
            self._is_stopping.wait(random.uniform(delay / 2, delay))  # noqa: S311 - no secret
            delay = min(2 * delay, MAX_RETRY_SECONDS)

    def _new_client(self) -> redis.Redis:
        return redis.Redis.from_url(
            self._url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def _confirm(self, client: redis.Redis, subscription: PubSub) -> None:
        """Subscribe, and wait for a frame of this process: it may publish, and Redis delivers."""
        subscription.subscribe(self.channel)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and not self._is_stopping.is_set():
            message = subscription.get_message(timeout=ANSWER_SECONDS)
            if message is None:
                break
            if message["type"] == "subscribe":
                client.publish(self.channel, self.packed([]))
            elif message["type"] == "message" and self._is_own(message["data"]):
                return
        raise redis.TimeoutError(f"It did not deliver a message within {ANSWER_SECONDS:.0f} s.")

    def _receive(self, subscription: PubSub) -> None:
        """Hand on messages until the connection fails."""
        asked_at: float | None = None
        while not self._is_stopping.is_set():
            if self._send_error is not None:
                raise self._send_error
            message = subscription.get_message(timeout=QUIET_SECONDS)
            if message is not None:
                asked_at = None
                if message["type"] == "message":
                    self._hand_on(message["data"])
            elif asked_at is None:
                subscription.ping()
                asked_at = time.monotonic()
            elif time.monotonic() - asked_at > ANSWER_SECONDS:
                raise redis.TimeoutError(f"It did not answer within {ANSWER_SECONDS:.0f} s.")

    def _become_connected(self, client: redis.Redis) -> None:
        with self._lock:
            self._send_error, self._client = None, client
            self._note(BrokerState.CONNECTED, "")
        log.info("connected to %s", redacted_redis_url(self._url))
        self._is_tried.set()

    def _become_away(self, problem: str) -> None:
        with self._lock:
            was_connected = self._state is BrokerState.CONNECTED
            is_news = was_connected or not self._is_tried.is_set()
            self._client = None
            _DROPPED.inc(len(self._queue))
            self._queue.clear()
            self._queued_bytes = 0
            self._note(BrokerState.AWAY, problem)
        if is_news and not self._is_stopping.is_set():
            log.warning(
                "%s is away, so that changes are noticed by polling: %s",
                redacted_redis_url(self._url),
                problem,
            )
        self._is_tried.set()

    def _note(self, state: BrokerState, problem: str) -> None:
        has_changed, self._state, self._problem = self._state is not state, state, problem
        _CONNECTED.set(state is BrokerState.CONNECTED)
        if has_changed:
            for watcher in self._watchers:
                watcher(state)

    def _send_forever(self) -> None:
        while not self._is_stopping.is_set():
            self._is_wanted.wait(QUIET_SECONDS)
            self._is_wanted.clear()
            client = self._client
            if client is not None:
                self._publish(client)
            self._is_stopping.wait(PAUSE_SECONDS)
        if self._client is not None:
            self._publish(self._client)

    def _publish(self, client: redis.Redis) -> None:
        """Publish what is queued; without anything, check that the connection is there."""
        messages = self._taken()
        try:
            if not messages:
                client.ping()
            while messages:
                client.publish(self.channel, self.packed(messages))
                _SENT.inc(len(messages))
                messages = self._taken()
        except Exception as error:  # noqa: BLE001 - of a connection that the other thread closes, any
            _DROPPED.inc(len(messages))
            if client is self._client:
                # The other thread connects anew.
                self._send_error = error

    def _taken(self) -> list[_Message]:
        messages: list[_Message] = []
        size = 0
        with self._lock:
            while self._queue and size < MAX_FRAME_BYTES - 2 * MAX_MESSAGE_BYTES:
                messages.append(self._queue.popleft())
                size += len(messages[-1][1]) + len(messages[-1][0]) + 16
            self._queued_bytes -= sum(len(message) for _, message in messages)
        return messages

    def packed(self, messages: list[_Message]) -> bytes:
        """Return the frame of messages, which is published before the next one is made."""
        with self._lock:
            self._number = max(self._number + 1, time.time_ns())
        content = _ENCODER.encode((self._origin, self._number, messages))
        return self.code(content) + content

    def code(self, content: bytes) -> bytes:
        """Return the code that proves that the content of a frame is of this portal."""
        return hashlib.blake2b(content, key=self._key, digest_size=_CODE_BYTES).digest()

    def _unpacked(self, frame: bytes) -> _Frame | None:
        code, content = frame[:_CODE_BYTES], frame[_CODE_BYTES:]
        if len(frame) <= MAX_FRAME_BYTES and hmac.compare_digest(code, self.code(content)):
            with suppress(msgspec.DecodeError):
                decoded: _Frame = _DECODER.decode(content)
                return decoded
        _MALFORMED.inc()
        return None

    def _is_own(self, frame: bytes) -> bool:
        unpacked = self._unpacked(frame)
        return unpacked is not None and unpacked[0] == self._origin

    def _hand_on(self, frame: bytes) -> None:
        unpacked = self._unpacked(frame)
        if unpacked is None or unpacked[0] == self._origin:
            return
        origin, number, messages = unpacked
        if not self._is_new(origin, number):
            _REPEATED.inc()
            return
        for channel, message in messages:
            _RECEIVED.inc()
            for listener in self._listeners.get(channel, ()):
                _call(listener, message)

    def _is_new(self, origin: bytes, number: int) -> bool:
        """Return whether a frame follows the last one of its process; note it."""
        oldest = time.time_ns() - int(MAX_AGE_SECONDS * 1e9)
        last = self._numbers.pop(origin, oldest)
        self._numbers[origin] = max(last, number)
        if len(self._numbers) > MAX_ORIGINS:
            del self._numbers[next(iter(self._numbers))]
        return number > last


def _call(listener: Callable[[bytes], Any], message: bytes) -> None:
    try:
        listener(message)
    except Exception:
        log.exception("a message of another process was not handled")
