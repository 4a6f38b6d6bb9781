"""Addresses and credentials of a Mesos cluster's APIs: tables of `agent.toml`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[marathon]`, `[metronome]` and `[chronos]`.

    Attributes:
        url: address of the API, with a path on DC/OS (`https://dcos.example.com/service/marathon`).
        username: for HTTP basic, with `password_file`.
        token_file: the token of DC/OS, instead.
        ca_file: trusted authorities (PEM), in place of the system's.
        timeout_seconds: of a request.
    """

    url: str
    username: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: Annotated[float, Meta(gt=0)] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MesosSettings(ServerSettings):
    """`[mesos]`: the Mesos agent on this appliance.

    Attributes:
        url: address of its API, for output and reasons; without it there are none.
        hostname: as the agent reports it, by default this host's; `*` runs jobs on any agent.
    """

    url: str = ""
    hostname: str = ""
