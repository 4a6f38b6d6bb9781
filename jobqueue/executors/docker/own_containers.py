"""Containers of the agent itself: confined as those of jobs, one at a time of each name."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from docker.errors import NotFound

from jobqueue.executors.base import OWNER_LABEL
from jobqueue.executors.docker import mapping
from jobqueue.executors.registry_token import CurrentRegistryToken
from protocol.attempts import AttemptSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContainers:
    """Creates and removes them on one engine.

    Attributes:
        client: connects to the engine.
        owner: the appliance's id.
        registry_token: the credentials of the portal's registry.
        pids_limit: most processes of a container.
    """

    client: Callable[[], Any]
    owner: str
    registry_token: CurrentRegistryToken
    pids_limit: int

    def create(
        self,
        client: Any,  # noqa: ANN401 - untyped SDK
        spec: AttemptSpec,
        options: Mapping[str, object] | None = None,
    ) -> Any:  # noqa: ANN401 - untyped SDK
        """Create the container of a spec, with options beside those of an attempt's."""
        created = mapping.container_options(
            spec, owner=self.owner, pids_limit=self.pids_limit, engine=client.info()
        )
        created |= {"name": self._name(spec.name), "labels": {OWNER_LABEL: self.owner}}
        return client.containers.create(**created | dict(options or {}))

    def remove(self, client: Any, name: str) -> None:  # noqa: ANN401 - untyped SDK
        """Remove the container of a name, if there is one, with its volumes."""
        with contextlib.suppress(NotFound):
            client.containers.get(self._name(name)).remove(force=True, v=True)

    def _name(self, name: str) -> str:
        return f"{name}-{self.owner}"
