"""An appliance with a cache, and the portal that sends it datasets."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.data_dir import Identity
from collector.datasets.cache import Cache
from collector.datasets.peers import PeerTLS
from collector.datasets.settings import DatasetSettings
from collector.datasets.stager import Stager
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from core.clock import to_ns, utc_now
from protocol.attempts import AttemptSpec, DesiredState
from protocol.datasets import DatasetOrders, StagedDataset
from tests.fixtures.data_portal import DataPortal, data_portal
from tests.fixtures.polling import eventually

GIB = 2**30


class Appliance:
    """An agent's stager on a folder of its own."""

    def __init__(
        self,
        folder: Path,
        portal: DataPortal,
        *,
        name: str = "dgx-1",
        settings: DatasetSettings | None = None,
        peer_tls: PeerTLS | None = None,
    ) -> None:
        self.folder, self.portal = folder, portal
        self.settings = settings or DatasetSettings(
            cache_max_bytes=GIB, min_free_bytes=0, retry_seconds=1.0
        )
        self.identity = Identity(appliance_id=name, tenant_id="acme", agent_token="token")
        self._peer_tls = peer_tls
        self.start()

    def start(self) -> None:
        """Begin as a new agent process does."""
        self.cache = Cache(
            self.folder / "datasets",
            max_bytes=self.settings.cache_max_bytes,
            min_free_bytes=self.settings.min_free_bytes,
            now_ns=lambda: to_ns(utc_now()),
        )
        self.stager = Stager(
            self.settings,
            self.cache,
            connect=self.connect,
            identity=self.identity,
            peer_tls=self._peer_tls,
        )
        self.stager.start()

    def connect(self) -> PortalConnection:
        return PortalConnection(AccessPoints([self.portal.url]), agent_token="token")

    def restart(self) -> None:
        """End and begin again."""
        self.stager.close()
        self.start()

    def wants(self, *datasets: StagedDataset, orders: DatasetOrders | None = None) -> None:
        """Send a desired state with one attempt that has these datasets."""
        spec = AttemptSpec(
            attempt_id="a", job_id="job", name="train", image="train", datasets=list(datasets)
        )
        self.stager.set_desired(
            DesiredState(generation=1, attempts=[spec], datasets=orders or DatasetOrders())
        )

    def stage(self, *datasets: StagedDataset, attempt_id: str = "a") -> list[Path]:
        """Stage the datasets of an attempt; return their trees."""
        self.wants(*datasets)
        trees: list[str] = []

        def are_there() -> bool:
            trees[:] = self.stager.trees(attempt_id, datasets) or []
            return bool(trees)

        eventually(are_there, what="the datasets")
        return [Path(tree) for tree in trees]


@pytest.fixture
def portal() -> Iterator[DataPortal]:
    with data_portal() as running:
        yield running


@pytest.fixture
def make_appliance(tmp_path: Path, portal: DataPortal) -> Iterator[Callable[..., Appliance]]:
    made: list[Appliance] = []

    def make(name: str = "dgx-1", **options: object) -> Appliance:
        appliance = Appliance(tmp_path / name, portal, name=name, **options)  # type: ignore[arg-type]
        made.append(appliance)
        return appliance

    yield make
    for appliance in made:
        appliance.stager.close()


@pytest.fixture
def appliance(make_appliance: Callable[..., Appliance]) -> Appliance:
    return make_appliance()
