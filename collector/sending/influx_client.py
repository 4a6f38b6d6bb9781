"""The write call of influxdb-client, and no more of it than that takes.

The client's packages import a class per object of InfluxDB's API when they are first named: some
350 modules, none of which a write needs. While the write call is imported and built, light
stand-ins that import what is asked for take their place; what else uses the client gets the real
packages.
"""

import importlib
import importlib.util
import logging
import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)

_ROOT = "influxdb_client"
_HEAVY = (_ROOT, f"{_ROOT}.domain", f"{_ROOT}.service", f"{_ROOT}.client")
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_IMPORTING = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteClientSettings:
    """Where a client writes to, and how it proves who it is.

    Attributes:
        url: the server's address.
        authorization: the header's value; empty for none.
        timeout_seconds: how long an answer may take.
        tls: for https.
        proxy: address of the proxy on the way; None for none.
        proxy_headers: what the proxy is told.
    """

    url: str
    authorization: str
    timeout_seconds: float
    tls: ssl.SSLContext | None = None
    proxy: str | None = None
    proxy_headers: dict[str, str] | None = None


class InfluxWriteClient:
    """Writes line protocol synchronously: one call, one request, no retries. For one thread."""

    def __init__(self, settings: WriteClientSettings) -> None:
        with _IMPORTING:
            try:
                with _light_packages():
                    self._build(settings)
            except (ImportError, AttributeError) as error:
                # Another version of the client may be laid out differently: then as a whole.
                log.debug("influxdb-client is imported whole: %s", error)
                self._build(settings)

    def _build(self, settings: WriteClientSettings) -> None:
        self.error: type[Exception] = _named("rest", "ApiException")
        configuration = _named("configuration", "Configuration")()
        configuration.host = settings.url
        configuration.timeout = int(settings.timeout_seconds * 1000)
        configuration.ssl_context = settings.tls
        configuration.proxy = settings.proxy
        configuration.proxy_headers = settings.proxy_headers
        configuration.connection_pool_maxsize = 1
        configuration.enable_gzip = False  # the lines come compressed
        self._api = _named("_sync.api_client", "ApiClient")(
            configuration,
            header_name="Authorization" if settings.authorization else None,
            header_value=settings.authorization,
        )
        self._service = _named("service.write_service", "WriteService")(self._api)

    def write(self, compressed: bytes, *, bucket: str, organisation: str) -> None:
        """Send lines that were compressed with gzip; times are in nanoseconds.

        Raises:
            self.error: the server answered something else than success, or TLS failed.
            urllib3.exceptions.HTTPError: nobody answers.
        """
        self._service.post_write(
            org=organisation,
            bucket=bucket,
            body=compressed,
            precision="ns",
            content_encoding="gzip",
            content_type="text/plain; charset=utf-8",
        )

    def close(self) -> None:
        """Close the connection."""
        self._api.rest_client.pool_manager.clear()


def _named(module: str, name: str) -> Any:  # noqa: ANN401 - the client has no types
    return getattr(importlib.import_module(f"{_ROOT}.{module}"), name)


@contextmanager
def _light_packages() -> Iterator[None]:
    """Put the stand-ins in place, unless the real packages are there already."""
    names = [name for name in _HEAVY if name not in sys.modules]
    if _ROOT not in names:
        yield
        return
    for name in names:
        sys.modules[name] = _stand_in(name)
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _stand_in(name: str) -> ModuleType:
    """Return a package that imports a module of its own when something in that is asked for."""
    spec = importlib.util.find_spec(_ROOT) if name == _ROOT else None
    package = ModuleType(name)
    root = sys.modules[_ROOT] if spec is None else package
    locations = spec.submodule_search_locations if spec is not None else None
    folder = next(iter(locations)) if locations is not None else f"{root.__path__[0]}"
    package.__path__ = [folder if name == _ROOT else f"{folder}/{name.rpartition('.')[2]}"]
    setattr(package, "__getattr__", _find)  # noqa: B010 - a module's own hook has no type
    return package


def _find(name: str) -> Any:  # noqa: ANN401 - the client has no types
    snake = _WORD.sub("_", name).lower()
    for module in (f"service.{snake}", f"domain.{snake}", snake):
        if importlib.util.find_spec(f"{_ROOT}.{module}") is not None:
            return _named(module, name)
    raise AttributeError(name)
