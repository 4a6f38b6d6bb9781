"""Pulling images on a Docker engine, with progress."""

from collections.abc import Callable, Mapping
from typing import Any

from docker.errors import APIError

# The progress is reported when this much more was downloaded, so that reports stay few.
STEP_PERCENT = 10
DONE = frozenset({"Pull complete", "Already exists"})


class PullError(Exception):
    """An image can't be pulled; the text is the engine's."""


def pull(
    api: Any,  # noqa: ANN401 - untyped SDK object
    image: str,
    *,
    credentials: Mapping[str, str] | None = None,
    on_progress: Callable[[str], bool],
) -> None:
    """Pull an image.

    Args:
        api: the SDK's low-level client.
        image: with tag or digest; `latest` is added otherwise.
        credentials: the engine's `auth_config`; by default that of its client configuration.
        on_progress: called with a sentence whenever it changes; False cancels the pull.

    Raises:
        PullError: the registry or the engine refused.
    """
    last_part = image.rsplit("/", 1)[-1]
    name = image if ":" in last_part or "@" in last_part else f"{image}:latest"
    progress, shown = PullProgress(), ""
    try:
        # Without a tag the SDK would pull all tags.
        lines = api.pull(name, stream=True, decode=True, auth_config=credentials)
        for line in lines:
            if "error" in line:
                raise PullError(str(line["error"]))
            progress.add(line)
            if progress.text != shown:
                shown = progress.text
                if not on_progress(f"Pulling image {image}: {shown}."):
                    return
    except APIError as error:
        raise PullError(str(error.explanation or error)) from error


class PullProgress:
    """Sums the progress of an image's layers, from the engine's lines."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one line of the engine's answer."""
        layer, status = line.get("id", ""), line.get("status", "")
        if status in {"Pulling fs layer", "Waiting", *DONE}:
            self._layers.setdefault(layer, (0, 0))
        if status in DONE:
            self._done.add(layer)
        elif status == "Downloading":
            detail = line.get("progressDetail") or {}
            self._layers[layer] = (detail.get("current", 0), detail.get("total", 0))

    @property
    def text(self) -> str:
        """`3 of 7 layers, 40 % downloaded`, in steps."""
        current = sum(current_bytes for current_bytes, _ in self._layers.values())
        total = sum(total_bytes for _, total_bytes in self._layers.values())
        percent = 100 * current // total // STEP_PERCENT * STEP_PERCENT if total else 0
        downloaded = f", {percent} % downloaded" if total else ""
        return f"{len(self._done)} of {len(self._layers)} layers{downloaded}"
