"""Versions of the container engine and its parts.

Source: Docker Engine API, `GET /version`; `nvidia-ctk --version`.
"""

import re
import subprocess
from pathlib import Path

from plugins.base import PluginError
from plugins.containers.engine import Engine, EngineVersion
from protocol.inventory import MAX_TEXT_LENGTH

TOOLKIT = Path("/usr/bin/nvidia-ctk")
TOOLKIT_NAME = "nvidia-container-toolkit"
TIMEOUT_SECONDS = 5
# As packagers and advisories call them.
NAMES = {"Engine": "docker"}
PARTS = frozenset({"Engine", "containerd", "runc"})


class ComponentReader:
    """Reads the versions; one that does not answer is left out."""

    def __init__(self, docker_url: str, toolkit: Path = TOOLKIT) -> None:
        self._engine = Engine(docker_url)
        self._toolkit = toolkit
        self._toolkit_versions: dict[float, str] = {}

    def read(self) -> dict[str, str]:
        """Return versions by name."""
        versions = {}
        try:
            answer = self._engine.version()
        except PluginError:
            answer = EngineVersion()
        for part in answer.components:
            if part.name in PARTS:
                versions[NAMES.get(part.name, part.name)] = part.version[:MAX_TEXT_LENGTH]
        if version := self._toolkit_version():
            versions[TOOLKIT_NAME] = version
        return versions

    def close(self) -> None:
        """Disconnect from the engine."""
        self._engine.close()

    def _toolkit_version(self) -> str:
        """Return the version of NVIDIA's toolkit; it is asked again once the file has changed."""
        try:
            changed_at = self._toolkit.stat().st_mtime
            if changed_at not in self._toolkit_versions:
                answer = subprocess.run(  # noqa: S603 - a fixed program without arguments of others
                    [self._toolkit, "--version"],
                    capture_output=True,
                    timeout=TIMEOUT_SECONDS,
                    check=False,
                )
                number = re.search(rb"version (\d+(?:\.\d+)+)", answer.stdout)
                self._toolkit_versions = {changed_at: number[1].decode() if number else ""}
        except (OSError, subprocess.SubprocessError):
            return ""
        return self._toolkit_versions[changed_at][:MAX_TEXT_LENGTH]
