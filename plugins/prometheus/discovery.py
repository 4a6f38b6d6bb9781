"""The targets to scrape: those of the configuration, of files, and of Docker containers.

Files are those of Prometheus' file_sd: lists of `targets` with `labels`, in JSON or YAML. They are
read again when they change, and a file that can't be read keeps its last targets.

A container is a target if it is a job with a port named `metrics`, or has the label
`prometheus.io/scrape=true`, with `prometheus.io/port` and `prometheus.io/path`.
"""

import glob
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import yaml

from jobqueue.executors.base import JOB_LABEL
from plugins.containers.engine import ListedContainer

log = logging.getLogger(__name__)

ADDRESS, SCHEME, PATH = "__address__", "__scheme__", "__metrics_path__"
METRICS_PORT = "metrics"
PORT_LABEL = "io.vedette.port."
SCRAPE_LABEL, SCRAPE_PORT, SCRAPE_PATH = (
    "prometheus.io/scrape",
    "prometheus.io/port",
    "prometheus.io/path",
)
_META = "__meta_docker_container_"
MAX_FILE_BYTES = 1024 * 1024
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target of the configuration.

    Attributes:
        url: where its metrics are, such as `http://localhost:9100/metrics`.
        labels: of each of its samples.
    """

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/\s]+")]
    labels: dict[str, str] = field(default_factory=dict)


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


def static_targets(targets: Sequence[TargetConfig]) -> Iterator[dict[str, str]]:
    """Yield the labels of configured targets, those with their address included."""
    for target in targets:
        url = urlsplit(target.url)
        path = url.path or "/metrics"
        yield {
            "job": "prometheus",
            **target.labels,
            ADDRESS: url.netloc,
            SCHEME: url.scheme,
            PATH: f"{path}?{url.query}" if url.query else path,
        }


class TargetFiles:
    """The targets of files whose names match some patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._read: dict[str, tuple[float, list[_Group]]] = {}

    def targets(self) -> Iterator[dict[str, str]]:
        """Yield the labels of each target."""
        paths = sorted({path for pattern in self._patterns for path in glob.glob(pattern)})  # noqa: PTH207 - absolute patterns
        self._read = {path: self._read[path] for path in paths if path in self._read}
        for path in paths:
            for group in self._groups(path):
                for address in group.targets:
                    yield {"job": Path(path).stem, **group.labels, ADDRESS: address}

    def _groups(self, path: str) -> list[_Group]:
        read_at, groups = self._read.get(path, (-1.0, []))
        try:
            changed_at = Path(path).stat().st_mtime
            if changed_at != read_at:
                groups = _read_groups(Path(path))
        except (OSError, ValueError, yaml.YAMLError) as error:
            log.warning("can't read the targets of %s, using the last ones: %s", path, error)
            changed_at = read_at
        self._read[path] = changed_at, groups
        return groups


def container_targets(containers: Iterable[ListedContainer]) -> Iterator[dict[str, str]]:
    """Yield the labels of containers that say that they have metrics."""
    for container in containers:
        labels = container.labels or {}
        port, path = _metrics_port(labels)
        address = container.address(port) if port and container.state == "running" else ""
        if not address:
            continue
        job_id = labels.get(JOB_LABEL, "")
        yield {
            **{f"{_META}label_{_name(key)}": value for key, value in labels.items()},
            f"{_META}name": container.name,
            "job": job_id or container.name,
            "container": container.name,
            "instance": f"{container.name}:{port}",
            ADDRESS: address,
            PATH: path,
        }


def _metrics_port(labels: Labels) -> tuple[int, str]:
    """Return the port with metrics, 0 without one, and their path."""
    path = labels.get(SCRAPE_PATH, "/metrics")
    for label, name in labels.items():
        number = label.removeprefix(PORT_LABEL)
        if name == METRICS_PORT and number != label and number.isdecimal():
            return int(number), path
    port = labels.get(SCRAPE_PORT, "")
    is_wanted = labels.get(SCRAPE_LABEL, "").lower() == "true" and port.isdecimal()
    return (int(port) if is_wanted else 0), path


def _read_groups(path: Path) -> list[_Group]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    text = path.read_bytes()
    content = msgspec.json.decode(text) if path.suffix == ".json" else yaml.safe_load(text)
    return msgspec.convert(content or [], list[_Group])


def _name(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label)
