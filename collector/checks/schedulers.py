"""Checks of the servers and clusters that run jobs: reachable, their versions, GPUs."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from collector.checks.connections import CheckResult, Verdict
from collector.config import AgentConfig
from jobqueue.executors.base import ExecutorError, NotFoundError
from jobqueue.executors.mesos.agent import MesosAgent
from jobqueue.executors.mesos.chronos import PREFIXES, find_prefix
from jobqueue.executors.mesos.marathon import GPU_FEATURE, features_of, release_of
from jobqueue.executors.mesos.marathon_client import Marathon
from jobqueue.executors.scheduler_api import SchedulerAPI
from jobqueue.executors.settings import (
    KubernetesSettings,
    MesosSettings,
    RaySettings,
    ServerSettings,
    SlurmSettings,
)
from protocol.clusters import NodeState

OLDEST, NEWEST = (1, 4), (1, 11)
ADVICE = "Check the url, the credentials and the network."


def check_schedulers(config: AgentConfig) -> Iterator[CheckResult]:
    """Yield the results for each configured server, or for the cluster of a connector."""
    if config.executor == "slurm":
        slurm = config.slurm or SlurmSettings()
        where = "url, token_file" if slurm.api == "rest" else "bin_dir"
        advice = f"Check {where} and work_dir in [slurm], munge, and slurmctld: scontrol ping"
        yield _checked("Slurm", lambda: _check_slurm(config, slurm), advice=advice)
        return
    if config.executor == "kubernetes":
        # Imported only if it is used: not every agent has its packages.
        from collector.checks.kubernetes import check_kubernetes  # noqa: PLC0415

        yield from check_kubernetes(config.kubernetes or KubernetesSettings())
        return
    if (ray := config.ray) is not None:
        advice = "Check [ray] url, token_file and the network; the head must run its dashboard."
        yield _checked("Ray", lambda: _check_ray(ray), advice=advice)
        return
    if (marathon := config.marathon) is not None:
        yield _checked("Marathon", lambda: _check_marathon(marathon))
    if (metronome := config.metronome) is not None:
        yield _checked("Metronome", lambda: _check_metronome(metronome))
    if (chronos := config.chronos) is not None:
        yield _checked("Chronos", lambda: _check_chronos(chronos))
    mesos = config.mesos or MesosSettings()
    if not mesos.url:
        message = "not configured: jobs have no output, and failures no reasons"
        yield CheckResult(Verdict.WARNING, "Mesos agent", message, "Set [mesos] url.")
    else:
        yield _checked("Mesos agent", lambda: _check_mesos(mesos))


def _check_ray(settings: RaySettings) -> CheckResult:
    # Imported only if it is used, to save memory.
    from jobqueue.executors.ray.client import RayAPI  # noqa: PLC0415

    with closing(RayAPI(settings)) as api:
        api.session_name()
        nodes = [node for node in api.state("nodes") if node["state"] == "ALIVE"]
        api.jobs()
    message = f"{settings.url} answers, version {api.version_text}, {len(nodes)} nodes"
    if not nodes:
        return CheckResult(Verdict.WARNING, "Ray", message, "Start nodes, or no job starts.")
    return CheckResult(Verdict.OK, "Ray", message)


def _checked(name: str, check: Callable[[], CheckResult], *, advice: str = ADVICE) -> CheckResult:
    try:
        return check()
    except ExecutorError as error:
        return CheckResult(Verdict.FAIL, name, str(error), advice)
    except OSError as error:
        return CheckResult(Verdict.FAIL, name, f"a file can't be read: {error}", ADVICE)


def _check_marathon(settings: ServerSettings) -> CheckResult:
    with closing(Marathon(settings)) as client:
        info = client.get_info()
    version, release = info.get("version", "unknown"), release_of(info)
    message = f"{settings.url} answers, version {version}"
    if not OLDEST <= release <= NEWEST:
        advice = "Releases 1.4 to 1.10 are supported."
        return CheckResult(Verdict.WARNING, "Marathon", message, advice)
    if GPU_FEATURE not in features_of(info):
        message += f"; it offers no GPUs, the feature {GPU_FEATURE} is off"
        advice = f"For services with GPUs, start it with --enable_features {GPU_FEATURE}."
        return CheckResult(Verdict.WARNING, "Marathon", message, advice)
    return CheckResult(Verdict.OK, "Marathon", f"{message}, with {GPU_FEATURE}")


def _check_metronome(settings: ServerSettings) -> CheckResult:
    version = "unknown"
    with closing(SchedulerAPI("Metronome", settings)) as api:
        api.get("/v1/jobs")
        with suppress(NotFoundError):
            version = api.get("/info").get("version", version)
    return CheckResult(
        Verdict.OK, "Metronome", f"{settings.url} answers, version {version}, with GPUs"
    )


def _check_chronos(settings: ServerSettings) -> CheckResult:
    with closing(SchedulerAPI("Chronos", settings)) as api:
        prefix = find_prefix(api)
    generation = "3.x" if prefix == PREFIXES[0] else "2.x"
    message = f"{settings.url} answers, generation {generation} (GPUs are not counted)"
    return CheckResult(Verdict.OK, "Chronos", message)


def _check_slurm(config: AgentConfig, settings: SlurmSettings) -> CheckResult:
    """Check that Slurm answers and that the folder for scripts can be written."""
    # Imported only if it is used, to save memory.
    from jobqueue.executors.recorded import ExecutorSite  # noqa: PLC0415
    from jobqueue.executors.slurm.executor import SlurmExecutor  # noqa: PLC0415

    site = ExecutorSite(owner="check", state_dir=config.data_dir / "attempts")
    with closing(SlurmExecutor(settings, site)) as executor:
        report = executor.read_cluster()
    nodes = [node for node in report.nodes if node.state is NodeState.UP]
    gpus = sum(node.gpus for node in nodes)
    message = (
        f"{report.name or 'the cluster'} answers, version {report.version}, "
        f"{len(nodes)} of {len(report.nodes)} nodes up with {gpus} GPUs"
    )
    if settings.work_dir is None:
        advice = "Set work_dir in [slurm] to a folder that all nodes share."
        message += "; scripts and output are in data_dir, which nodes can't read"
        return CheckResult(Verdict.WARNING, "Slurm", message, advice)
    if not nodes:
        return CheckResult(Verdict.WARNING, "Slurm", message, "See why: sinfo --list-reasons")
    return CheckResult(Verdict.OK, "Slurm", message)


def _check_mesos(settings: MesosSettings) -> CheckResult:
    with closing(MesosAgent(settings)) as agent:
        version, hostname = agent.describe()
    message = f"{settings.url} answers, version {version}, host name {hostname}"
    wanted = settings.hostname or socket.getfqdn()
    if wanted not in {"*", hostname}:
        advice = f'Set [mesos] hostname = "{hostname}", or no job starts.'
        return CheckResult(Verdict.FAIL, "Mesos agent", f"{message}, not {wanted}", advice)
    return CheckResult(Verdict.OK, "Mesos agent", message)
