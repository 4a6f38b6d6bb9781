"""Executors of connectors: they hand attempts to the queue of a cluster, and tell of its nodes."""

import logging
from abc import abstractmethod
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

import msgspec

from jobqueue.executors.base import ExecutorError
from jobqueue.executors.recorded import ExecutorSite, RecordedExecutor
from jobqueue.executors.settings import ClusterSettings
from protocol.clusters import MAX_CLUSTER_TEXT, ClusterKind, ClusterReport

log = logging.getLogger(__name__)

# How often the nodes are read. Heartbeats carry what was read last.
READ_SECONDS = 10.0
# A first heartbeat waits this long for the first reading; a cluster may take far longer to answer.
FIRST_SECONDS = 3.0
CLOSE_SECONDS = 5.0
# A heartbeat of 2 MiB is refused, and has more than the cluster.
MAX_BYTES = 1_600_000
# To how many queues and letters of its reason each node is cut, if all of a report is too large.
_CUTS = ((40, MAX_CLUSTER_TEXT), (4, 60), (0, 0))


C = TypeVar("C", bound=ClusterSettings)


class ClusterExecutor(RecordedExecutor[ExecutorSite], Generic[C]):
    """An executor over the scheduler of a cluster; its nodes are read in the background."""

    kind: ClusterKind
    is_submit_idempotent = True

    def __init__(self, settings: C, site: ExecutorSite) -> None:
        self.name = self.kind.value
        self.names = (self.name,)
        super().__init__(site)
        self._settings = settings
        self._report = ClusterReport(kind=self.kind, problem="The cluster has not been read yet.")
        self._start_lock = Lock()
        self._has_read = Event()
        self._is_closing = Event()
        self._reader: Thread | None = None

    @abstractmethod
    def read_cluster(self) -> ClusterReport:
        """Read the cluster; may raise `ExecutorError` with its own words."""

    def cluster(self) -> ClusterReport:
        """Return what was read last; from the first call on it is read regularly."""
        with self._start_lock:
            if self._reader is None:
                self._reader = Thread(target=self._keep_reading, name="cluster", daemon=True)
                self._reader.start()
        self._has_read.wait(FIRST_SECONDS)
        return self._report

    def _keep_reading(self) -> None:
        while not self._is_closing.is_set():
            self._read_once()
            self._has_read.set()
            self._is_closing.wait(READ_SECONDS)

    def _read_once(self) -> None:
        before = self._report
        try:
            report = fitting(self.read_cluster())
        except ExecutorError as error:
            # The nodes of the last report stay: they may be fine.
            report = msgspec.structs.replace(before, problem=str(error)[:MAX_CLUSTER_TEXT])
        except Exception:  # an answer of an unknown version must not end the thread
            log.exception("%s can't be read", self.name)
            problem = f"{self.name} gave an answer that is not known."
            report = msgspec.structs.replace(before, problem=problem)
        self._report = report
        if report.problem not in {"", before.problem}:
            log.warning("%s takes no jobs: %s", self.name, report.problem)

    def close(self) -> None:
        """End the reading; jobs of the cluster continue."""
        self._is_closing.set()
        if self._reader is not None:
            self._reader.join(CLOSE_SECONDS)


def fitting(report: ClusterReport) -> ClusterReport:
    """Return a report that a heartbeat can carry: at worst without nodes and queues at the end."""
    whole = report
    for queues, letters in _CUTS:
        if len(msgspec.json.encode(report)) <= MAX_BYTES:
            return report
        nodes = [
            msgspec.structs.replace(node, queues=node.queues[:queues], reason=node.reason[:letters])
            for node in whole.nodes
        ]
        report = msgspec.structs.replace(whole, nodes=nodes)
    while len(msgspec.json.encode(report)) > MAX_BYTES:
        counts = len(report.nodes) * 9 // 10, len(report.queues) * 9 // 10
        nodes, listed = report.nodes[: counts[0]], report.queues[: counts[1]]
        report = msgspec.structs.replace(report, nodes=nodes, queues=listed)
    return report
