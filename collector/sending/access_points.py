"""Access points: the portal's addresses, and which of them the agent uses.

    configured      `portal_urls`
    listed          by the portal, in answers to heartbeats; the others are then a last resort

Of those that answer, `collector.sending.choice` chooses. The agent *moves* once the same other
address was preferred for several rounds of probes, so that it does not alternate. It *fails over*
at once where an address refuses a connection, and where it answers neither a request nor a probe
while another one does (see `collector.sending.probing`). An address that fails is avoided, longer
after each failure. An overloaded server (429, 503) is waited for, as long as its `/health` answers.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from threading import Event, Lock

import msgspec

from collector.errors import InvalidAccessPointsError
from collector.sending.choice import DEFAULT_WEIGHT, AccessPoint, Tier, choose, ranked
from collector.sending.listed import AccessPointFile, AccessPointState, parse_list
from collector.sending.under_way import Request, RequestsUnderWay

log = logging.getLogger(__name__)

# Rounds of probes in a row that prefer another address before the agent moves there.
STEADY_ROUNDS = 3
# A request without a response for so long makes an address suspect.
SUSPECT_SECONDS = 2.5
SUSPECT_AGAIN_SECONDS = 5.0
# A server that answers probes, but no requests, is given up.
MAX_UNAVAILABLE_SECONDS = 120.0
# To connect, where there is another address.
CONNECT_SECONDS = 3.0
# A tunnel with users stays so long after a move.
TUNNEL_STAY_SECONDS = 600.0
# Of a round of probes: the nearest, the addresses whose last probe is oldest, and all that is new.
NEAR_PROBES, OTHER_PROBES, MAX_PROBES = 4, 4, 16
SUSPICION_PROBES = 2
LEAVING = {
    Tier.DRAINING: "is drained",
    Tier.CONFIGURED: "is not listed",
    Tier.REMOVED: "was removed",
}


class AccessPoints:
    """Selects the address in use. Thread-safe.

    Args:
        urls: the configured addresses; without measurements an earlier one is preferred.
        key: the agent's id, by which agents spread.
        file: where the portal's list and the choice are stored; None to forget them.
        monotonic: measures durations.

    Attributes:
        suspected: set when the address in use should be checked at once.
        relisted: set when the portal's list has changed.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str = "",
        file: AccessPointFile | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not urls:
            raise ValueError("an agent needs at least one portal address")
        self._configured = list(dict.fromkeys(url.rstrip("/") for url in urls))
        self._key = key
        self._file = file
        self._monotonic = monotonic
        self._lock = Lock()
        self._under_way = RequestsUnderWay(monotonic)
        self.suspected, self.relisted = Event(), Event()
        self._state = AccessPointState(configured=self._configured)
        if file is not None:
            self._state = file.load(self._configured)
        self._saved_state = self._state
        self._points: list[AccessPoint] = []
        self._current = AccessPoint(self._state.current or self._configured[0])
        # The first measured choice needs no rounds, and none after the address in use was removed.
        self._is_settled = bool(self._state.current)
        self._arrange()
        self._switched_at = -math.inf
        self._has_failed_over = False
        self._preferred: AccessPoint | None = None
        self._preferred_rounds = 0
        self._suspicion = ""
        self._refusal = ""

    @property
    def current(self) -> str:
        """The address in use, without a trailing slash."""
        return self._current.url

    @property
    def urls(self) -> list[str]:
        """All addresses."""
        return [point.url for point in self._points]

    @property
    def latency_seconds(self) -> float | None:
        """The latency of the address in use; None before the first measurement."""
        with self._lock:
            measured = self._current.probes or self._current.writes
            return median(measured) if measured else None

    @property
    def has_healthy(self) -> bool:
        """Return whether there is an address that isn't avoided now."""
        with self._lock:
            return bool(self._healthy())

    @property
    def revision(self) -> str:
        """The revision of the portal's list; "" before the first."""
        listed = self._state.listed
        return listed.revision if listed is not None else ""

    @property
    def state(self) -> AccessPointState:
        """The list, the choice, and counters of changes."""
        return self._state

    def __len__(self) -> int:
        return len(self._points)

    def connect_seconds(self, seconds: float) -> float:
        """Return how long to wait for a connection, `seconds` where there is no other address."""
        return min(CONNECT_SECONDS, seconds) if len(self) > 1 else seconds

    @contextmanager
    def under_way(
        self, url: str, abort: Callable[[], None], *, expected_seconds: float = 0.0
    ) -> Iterator[Request]:
        """Note a request while the block runs; leaving the address aborts it.

        Args:
            url: the address.
            abort: ends the request, from another thread.
            expected_seconds: how long the server may wait with the response; a move aborts such a
                wait. Infinite where the response may take any time.
        """
        with self._under_way.track(url, abort, expected_seconds=expected_seconds) as request:
            yield request
        if request.is_answered:
            with self._lock:
                if (point := self._find(url)) is not None:
                    point.answered_at = self._monotonic()
                    point.unavailable = 0

    def accept(self, data: msgspec.Raw | bytes) -> None:
        """Use a list of the portal from now on; an invalid one is logged and left out."""
        try:
            listed = parse_list(data, self._configured)
        except InvalidAccessPointsError as error:
            if error.message != self._refusal:
                log.error("The portal's list of access points is not used: %s.", error.message)  # noqa: TRY400
                self._refusal = error.message
            return
        with self._lock:
            if listed == self._state.listed:
                return
            self._state = msgspec.structs.replace(self._state, listed=listed)
            self._arrange()
        log.info("the portal lists %d access points (%s)", len(listed.points), listed.revision)
        self.relisted.set()
        self.suspected.set()  # its thread saves the list

    def record_failure(self, url: str, reason: str = "no response") -> None:
        """Avoid an address for a while and switch to another one."""
        with self._lock:
            if (point := self._find(url)) is not None:
                self._fail(point, reason)

    def record_success(self, url: str, latency_seconds: float | None = None) -> None:
        """Record that an address handled a request, and how long a write took."""
        with self._lock:
            if (point := self._find(url)) is None:
                return
            point.failures = point.unavailable = 0
            point.avoided_until = -math.inf
            point.is_answering = True
            if latency_seconds is not None:
                point.writes.append(latency_seconds)

    def record_unavailable(self, url: str) -> bool:
        """Record 502, 503, 504 or a late response; a second one in a row makes the address suspect.

        Returns:
            Whether to try soon, rather than as late as the server wants: another address may be
            used by then.
        """
        with self._lock:
            point, now = self._find(url), self._monotonic()
            if point is None or len(self._points) == 1:
                return point is None
            if not point.unavailable:
                point.unavailable_since = now
                point.is_alive &= now - point.judged_at < MAX_UNAVAILABLE_SECONDS
            point.unavailable += 1
            if point.unavailable > 1:
                self._suspect(point, "it is unavailable")
            if now - point.unavailable_since >= MAX_UNAVAILABLE_SECONDS:
                point.unavailable = 0
                self._fail(point, "it was unavailable for minutes")
            return not point.is_alive

    def record_probes(self, latencies_seconds: Mapping[str, float | None]) -> None:
        """Record a round of probes, by address, and choose; None for one that isn't healthy."""
        with self._lock:
            self._record_probes(latencies_seconds)
            if not self._current.is_answering:
                self._suspect(self._current, "it did not answer a probe")
            self._reconsider()

    def suspicion(self) -> str:
        """Return why the address in use may have failed; "" if nothing says so."""
        with self._lock:
            current = self._current
            if self._under_way.overdue_seconds(current.url) >= SUSPECT_SECONDS:
                self._suspect(current, f"no response within {SUSPECT_SECONDS:g} s")
            return self._suspicion

    def seconds_to_suspicion(self) -> float:
        """Return when to ask for a suspicion again: as soon as a request is overdue."""
        left_seconds = SUSPECT_SECONDS - self._under_way.overdue_seconds(self.current)
        return SUSPECT_SECONDS / 2 if left_seconds <= 0 else min(SUSPECT_SECONDS, left_seconds)

    def judge(self, suspicion: str, latencies_seconds: Mapping[str, float | None]) -> None:
        """Follow up a suspicion: fail over if the address in use did not answer and another did.

        Args:
            suspicion: why it was suspected.
            latencies_seconds: of probes that began after that; without the address in use, nothing
                is done.
        """
        with self._lock:
            self._suspicion = ""
            current, now = self._current, self._monotonic()
            if current.url not in latencies_seconds:
                return
            self._record_probes(latencies_seconds)
            current.judged_at = now
            current.is_alive = current.is_answering or now - current.answered_at < SUSPECT_SECONDS
            answering = [
                point
                for point in self._points
                if point is not current and latencies_seconds.get(point.url) is not None
            ]
            if not current.is_alive and answering:
                current.avoid(now=now)
                healthy = [point for point in answering if point.is_healthy(now)]
                self._fail_over(choose(healthy or answering, key=self._key), suspicion)
                self._under_way.abort(current.url, only_polls=False)

    def urls_to_judge(self) -> list[str]:
        """Return the address in use, and those that would be used in its place."""
        with self._lock:
            chosen = [self._current, *self._others()[:SUSPICION_PROBES]]
            return [point.url for point in chosen]

    def urls_to_probe(self) -> list[str]:
        """Return the addresses for the next round: near ones always, others in turn."""
        with self._lock:
            others = self._others()
            near, others = others[:NEAR_PROBES], others[NEAR_PROBES:]
            others.sort(key=lambda point: point.probed_at)
            new = sum(point.is_new for point in others)
            chosen = [self._current, *near, *others[: max(OTHER_PROBES, new)]]
            return [point.url for point in chosen[:MAX_PROBES]]

    @property
    def has_new(self) -> bool:
        """Return whether an address was never probed."""
        with self._lock:
            return any(point.is_new for point in self._points)

    def should_leave(self, url: str, *, is_idle: bool) -> bool:
        """Return whether a tunnel to an address should end: moves wait for its users for a while.

        Args:
            url: where the tunnel is.
            is_idle: whether nobody uses it.
        """
        with self._lock:
            if url == self._current.url:
                return False
            stayed_seconds = self._monotonic() - self._switched_at
            return is_idle or self._has_failed_over or stayed_seconds >= TUNNEL_STAY_SECONDS

    def save(self) -> None:
        """Store the list and the choice if they have changed."""
        state = self._state
        if self._file is not None and state is not self._saved_state:
            self._file.save(state)
            self._saved_state = state

    def _find(self, url: str) -> AccessPoint | None:
        return next((point for point in self._points if point.url == url), None)

    def _arrange(self) -> None:
        """Make the points of the list and the configuration; the one in use stays for now."""
        known_points = {point.url: point for point in [*self._points, self._current]}
        listed = self._state.listed.points if self._state.listed is not None else []
        rows = {
            entry.url: (entry.weight, Tier.LISTED if entry.weight else Tier.DRAINING)
            for entry in listed
        }
        tier = Tier.CONFIGURED if listed else Tier.LISTED
        rows = {url: (DEFAULT_WEIGHT, tier) for url in self._configured if url not in rows} | rows
        rows.setdefault(self._current.url, (DEFAULT_WEIGHT, Tier.REMOVED))
        points = []
        for url, (weight, point_tier) in rows.items():
            point = known_points.get(url) or AccessPoint(url)
            point.weight, point.tier = weight, point_tier
            points.append(point)
        self._points = points
        if self._current.tier is not Tier.LISTED:
            self._is_settled = False

    def _healthy(self) -> list[AccessPoint]:
        now = self._monotonic()
        return [point for point in self._points if point.is_healthy(now)]

    def _others(self) -> list[AccessPoint]:
        """Return the addresses beside the one in use, in the order of their use."""
        others = [point for point in self._points if point is not self._current]
        return ranked(others, key=self._key, now=self._monotonic())

    def _record_probes(self, latencies_seconds: Mapping[str, float | None]) -> None:
        for url, latency_seconds in latencies_seconds.items():
            if (point := self._find(url)) is not None:
                point.record_probe(latency_seconds, now=self._monotonic())

    def _reconsider(self) -> None:
        """Move if the same other address has been preferred for long enough."""
        healthy = [point for point in self._healthy() if point.probes]
        if not healthy or not self._current.is_answering:
            return
        preferred = choose(healthy, key=self._key, in_use=self._current)
        is_same = preferred is self._preferred
        self._preferred_rounds = self._preferred_rounds + 1 if is_same else 1
        self._preferred = preferred
        if preferred is self._current:
            self._is_settled = True
            if self._state.current != preferred.url:
                self._state = msgspec.structs.replace(self._state, current=preferred.url)
        elif not self._is_settled or self._preferred_rounds >= STEADY_ROUNDS:
            self._move(preferred)

    def _move(self, point: AccessPoint) -> None:
        left, before, after = self._current, self._current.latency_seconds, point.latency_seconds
        if left.tier is not point.tier:
            reason = f"{left.url} {LEAVING[left.tier]}"
        elif after < before:
            reason = f"{after * 1000:.0f} ms instead of {before * 1000:.0f} ms"
        else:
            reason = "its share of the agents"
        self._has_failed_over = False
        moves = self._state.moves + 1
        self._state = msgspec.structs.replace(self._state, moves=moves, reason=reason)
        log.info("moved to access point %s: %s", point.url, reason)
        self._switch(point)

    def _fail(self, point: AccessPoint, reason: str) -> None:
        point.avoid(now=self._monotonic())
        if point is not self._current:
            return
        if healthy := self._healthy():
            self._fail_over(choose(healthy, key=self._key), reason)
        else:  # try them in turn
            index = self._points.index(point)
            self._current = self._points[(index + 1) % len(self._points)]

    def _fail_over(self, point: AccessPoint, reason: str) -> None:
        self._has_failed_over = True
        reason = f"{self._current.url} failed: {reason.rstrip('.')}"
        failovers = self._state.failovers + 1
        self._state = msgspec.structs.replace(self._state, failovers=failovers, reason=reason)
        log.warning("failed over to access point %s: %s", point.url, reason)
        self._switch(point)

    def _switch(self, point: AccessPoint) -> None:
        left, self._current = self._current, point
        self._state = msgspec.structs.replace(self._state, current=point.url)
        self._switched_at, self._is_settled = self._monotonic(), True
        self._preferred, self._preferred_rounds, self._suspicion = None, 0, ""
        if left.tier is Tier.REMOVED:
            self._points.remove(left)
        self._under_way.abort(left.url, only_polls=True)
        self.suspected.set()  # its thread saves the choice

    def _suspect(self, point: AccessPoint, reason: str) -> None:
        if point is not self._current or len(self._points) == 1 or self._suspicion:
            return
        if self._monotonic() - point.judged_at >= SUSPECT_AGAIN_SECONDS:
            self._suspicion = reason
            self.suspected.set()
