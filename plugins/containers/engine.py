"""The Docker engine's HTTP API over its unix socket.

The standard library is enough for three questions, and is loaded by the agent anyway; the engine's
own SDK would cost memory on appliances that run no jobs.

Source: Docker Engine API, `GET /containers/json`, `GET /containers/{id}/json`, `GET /version`.
"""

import http.client
import socket
from typing import TypeVar

import msgspec

from plugins.base import PluginError, PluginUnavailableError

TIMEOUT_SECONDS = 5.0
UNIX_SCHEME = "unix://"

T = TypeVar("T")


class HostConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """Host configuration of a container."""

    network_mode: str = ""


class PublishedPort(msgspec.Struct, frozen=True, rename="pascal"):
    """A port of a container, and where the host has it; 0 if nowhere."""

    private_port: int
    public_port: int = 0


class Network(msgspec.Struct, frozen=True):
    """The address of a container in a network."""

    ip_address: str = msgspec.field(name="IPAddress", default="")


class NetworkSettings(msgspec.Struct, frozen=True, rename="pascal"):
    """The networks of a container."""

    networks: dict[str, Network] | None = None


class ListedContainer(msgspec.Struct, frozen=True, rename="pascal"):
    """A container in the engine's list; names start with a slash."""

    id: str
    image: str
    state: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None
    host_config: HostConfig = HostConfig()
    ports: list[PublishedPort] | None = None
    network_settings: NetworkSettings = NetworkSettings()

    def address(self, port: int) -> str:
        """Return where this host reaches a port of the container; "" if it doesn't."""
        for published in self.ports or ():
            if published.private_port == port and published.public_port:
                return f"127.0.0.1:{published.public_port}"
        if self.host_config.network_mode == "host":
            return f"127.0.0.1:{port}"
        networks = (self.network_settings.networks or {}).values()
        address = next((network.ip_address for network in networks if network.ip_address), "")
        return f"{address}:{port}" if address else ""

    @property
    def name(self) -> str:
        """Return its own name rather than a link alias."""
        names = [name.removeprefix("/") for name in self.names or ()]
        return next((name for name in names if "/" not in name), self.id[:12])


class ContainerState(msgspec.Struct, frozen=True, rename="pascal"):
    """State of a container; `pid` is 0 if it has no process."""

    pid: int = 0


class InspectedContainer(msgspec.Struct, frozen=True, rename="pascal"):
    """Details of a container."""

    state: ContainerState
    restart_count: int = 0


class Component(msgspec.Struct, frozen=True, rename="pascal"):
    """A part of the engine."""

    name: str
    version: str


class EngineVersion(msgspec.Struct, frozen=True, rename="pascal"):
    """What an engine is made of."""

    components: list[Component] = []


class Engine:
    """Client of a Docker engine, with one persistent connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: _UnixConnection | None = None

    def containers(self) -> list[ListedContainer]:
        """Return all containers, including stopped ones.

        Raises:
            PluginUnavailableError: no engine listens, or this user may not speak to it.
            PluginError: the engine answered with a fault, or broke off.
        """
        listed = self._get("/containers/json?all=1", list[ListedContainer])
        return listed or []

    def inspect(self, container_id: str) -> InspectedContainer | None:
        """Return a container; None if it is gone.

        Raises:
            PluginError: as `containers`.
        """
        return self._get(f"/containers/{container_id}/json", InspectedContainer)

    def version(self) -> EngineVersion:
        """Return its parts with their versions.

        Raises:
            PluginError: as `containers`.
        """
        return self._get("/version", EngineVersion) or EngineVersion()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, path: str, kind: type[T]) -> T | None:
        response = self._ask(path)
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise PluginError(f"the Docker engine answered {response.status} to GET {path}")
        try:
            return msgspec.json.decode(response.body, type=kind)
        except msgspec.MsgspecError as error:
            raise PluginError(f"{self._url} is not a Docker engine: {error}") from error

    def _ask(self, path: str) -> "_Answer":
        """Send a request; retry once if the engine closed the persistent connection."""
        is_kept = self._connection is not None
        try:
            return self._exchange(path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_kept and not isinstance(error, TimeoutError):
                return self._ask(path)
            raise self._fault(error) from error

    def _exchange(self, path: str) -> "_Answer":
        if self._connection is None:
            self._connection = _UnixConnection(_socket_path(self._url))
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        return _Answer(response.status, response.read())

    def _fault(self, error: Exception) -> PluginError:
        match error:
            case FileNotFoundError() | ConnectionRefusedError():
                return PluginUnavailableError(f"no Docker engine listens at {self._url}")
            case PermissionError():
                return PluginUnavailableError(
                    f"the agent's user may not speak to the Docker engine at {self._url}; add it "
                    "to the group docker and restart the agent"
                )
            case _:
                return PluginError(f"the Docker engine at {self._url} does not answer: {error}")


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._socket_path = socket_path

    def connect(self) -> None:
        """Connect to the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)


def _socket_path(url: str) -> str:
    if not url.startswith(UNIX_SCHEME):
        raise PluginUnavailableError(
            f"docker_url is {url}; only the engine of this host, at unix://PATH, can be read"
        )
    return url.removeprefix(UNIX_SCHEME)
