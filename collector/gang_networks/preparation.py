"""Prepares members of gangs: their network is there before their container starts.

One thread makes and removes, in the order in which it was asked to. Networks of members that run
are looked at again when the portal changes their gang, and every minute.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from collector.gang_networks.containers import NetworkContainers
from collector.gang_networks.errors import BusyError, LostError, NetworkError
from collector.gang_networks.forwarding import Forwarder
from collector.gang_networks.maker import NetworkMaker, sandbox_namespace
from collector.jobs.preparations import Preparation, PreparationError
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StagingProgress
from protocol.gangs import JobNetwork, member_address

log = logging.getLogger(__name__)

REASON = "network_failed"
REVIEW_SECONDS = 60.0
BUSY_SECONDS = 120.0
"""How long the engine may not answer before a member fails."""


@dataclass(slots=True)
class _Member:
    spec: AttemptSpec
    asked_at: float
    making: "Future[str]"
    sandbox: str = ""
    lost: str = ""
    noted: "Future[str] | None" = None
    busy_since: float | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)


class GangNetworkPreparation(Preparation):
    """Prepares the members of gangs with a private network. For one thread.

    Args:
        maker: makes the networks.
        containers: has their sandboxes.
    """

    def __init__(self, maker: NetworkMaker, containers: NetworkContainers) -> None:
        self._maker = maker
        self._containers = containers
        self._forwarder = Forwarder()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="gang-networks")
        self._members: dict[str, _Member] = {}
        self._cleaned: frozenset[str] | None = None
        self._cleaning: tuple[frozenset[str], Future[None]] | None = None

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt with its sandbox, once it is there.

        Raises:
            PreparationError: it can't be made.
        """
        if spec.network != JobNetwork.GANG:
            return spec
        if spec.gang is None or spec.gang.network is None:
            raise PreparationError(REASON, "The portal has not said which network its gang has.")
        member = self._ask(spec)
        if not member.making.done():
            return None
        try:
            member.sandbox = member.making.result()
        except BusyError as error:
            now = time.monotonic()
            member.busy_since = member.busy_since or now
            if now - member.busy_since > BUSY_SECONDS:
                raise PreparationError(REASON, str(error)) from error
            log.warning("attempt %s: %s Trying again.", spec.attempt_id, error)
            self._ask(spec, is_due=True)
            return None
        except NetworkError as error:
            raise PreparationError(REASON, str(error)) from error
        member.busy_since = None
        return msgspec.structs.replace(spec, sandbox=member.sandbox)

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:  # noqa: ARG002
        """Return what an attempt waits for."""
        return "Making the network of its gang.", None

    def update(self, specs: Sequence[AttemptSpec], observed: Collection[str]) -> None:
        """Keep the networks of members as the portal wants them, and repair what was removed.

        Args:
            specs: the attempts that should run.
            observed: those that the executor has.
        """
        for spec in specs:
            if spec.attempt_id in observed and spec.gang is not None and spec.gang.network:
                member = self._ask(spec)
                if member.making.done():
                    self._note(member)

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        """Return what was observed, with the endpoints of members; those that lost their network
        have failed.
        """
        return [self._reviewed(seen) for seen in observed]

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Remove the networks of other attempts."""
        wanted = frozenset(attempt_ids)
        for attempt_id in self._members.keys() - wanted:
            del self._members[attempt_id]
        if self._cleaning is not None:
            cleaned, cleaning = self._cleaning
            if not cleaning.done():
                return
            error = cleaning.exception()
            if error is None:
                self._cleaned = cleaned
            else:
                log.warning("networks of gangs were not removed, trying again: %s", error)
            self._cleaning = None
        if wanted != self._cleaned:
            self._cleaning = (wanted, self._worker.submit(self._clean, wanted))

    def close(self) -> None:
        """End the threads; networks stay."""
        self._worker.shutdown(cancel_futures=True)
        self._forwarder.close()
        self._maker.close()

    def _ask(self, spec: AttemptSpec, *, is_due: bool = False) -> _Member:
        """Have the network of a member made, if it is new or has changed, or is due for a look."""
        now = time.monotonic()
        member = self._members.get(spec.attempt_id)
        if member is None:
            member = _Member(spec, now, self._worker.submit(self._maker.ensure, spec))
            self._members[spec.attempt_id] = member
        elif member.making.done() and (
            is_due or spec.gang != member.spec.gang or now - member.asked_at > REVIEW_SECONDS
        ):
            member.spec, member.asked_at = spec, now
            member.making = self._worker.submit(self._maker.ensure, spec)
        return member

    def _note(self, member: _Member) -> None:
        """Note what came of the last look at the network of a member that runs."""
        error = member.making.exception()
        if error is None and not member.endpoints and member.spec.ports:
            member.endpoints = dict(self._endpoints(member.spec))
        if isinstance(error, LostError):
            member.lost = str(error)
        elif error is not None and member.noted is not member.making:
            log.warning("network of attempt %s: %s", member.spec.attempt_id, error)
        member.noted = member.making

    def _endpoints(self, spec: AttemptSpec) -> Iterator[tuple[str, str]]:
        gang = spec.gang
        if gang is None or gang.network is None:
            return
        address = str(member_address(gang.network.subnet, gang.rank).ip)
        numbers = {port.container_port: port.name for port in spec.ports}
        try:
            with sandbox_namespace(self._containers, spec.attempt_id) as namespace:
                if namespace is None:
                    return
                forwarded = self._forwarder.forward(
                    spec.attempt_id, namespace, address, list(numbers)
                )
        except (NetworkError, OSError) as error:
            log.warning("ports of attempt %s: %s", spec.attempt_id, error)
            return
        for number, endpoint in forwarded.items():
            yield numbers[number] or str(number), endpoint

    def _reviewed(self, seen: AttemptObservation) -> AttemptObservation:
        member = self._members.get(seen.attempt_id)
        if member is None or seen.state is not ObservedState.RUNNING:
            return seen
        if member.lost:
            return msgspec.structs.replace(
                seen,
                state=ObservedState.FAILED,
                reason=REASON,
                message=f"The network of its gang is gone: {member.lost}",
            )
        if not member.endpoints:
            return seen
        return msgspec.structs.replace(seen, endpoints=dict(member.endpoints))

    def _clean(self, attempt_ids: frozenset[str]) -> None:
        for attempt_id in self._forwarder.attempt_ids - attempt_ids:
            self._forwarder.forget(attempt_id)
        # Members that were asked for meanwhile come after this, as the portal lists them.
        self._maker.clean(attempt_ids)
