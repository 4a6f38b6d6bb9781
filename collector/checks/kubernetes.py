"""Checks of the cluster that `executor = "kubernetes"` uses: reachable, its version, rights."""

from collections.abc import Iterator

from collector.checks.connections import CheckResult, Verdict
from jobqueue.executors.base import ExecutorError
from jobqueue.executors.kubernetes.client import KubernetesAPI
from jobqueue.executors.kubernetes.cluster_reader import (
    ClusterReader,
    missing_rights,
    version_problem,
)
from jobqueue.executors.settings import KubernetesSettings

NAME = "Kubernetes"
ADVICE = "Check kubeconfig, context and the network; the agent needs the extra kubernetes."
RIGHTS_ADVICE = "Apply the roles of deploy/kubernetes/connector.yaml for this namespace."


def check_kubernetes(settings: KubernetesSettings) -> Iterator[CheckResult]:
    """Yield whether the cluster answers, and which rights are missing."""
    api = KubernetesAPI(settings)
    try:
        yield from _check(api, settings)
    except ExecutorError as error:
        yield CheckResult(Verdict.FAIL, NAME, str(error), ADVICE)
    finally:
        api.close()


def _check(api: KubernetesAPI, settings: KubernetesSettings) -> Iterator[CheckResult]:
    reader = ClusterReader(api, settings)
    version = reader.version()
    if problem := version_problem(version):
        yield CheckResult(Verdict.FAIL, NAME, problem, "Upgrade the cluster.")
        return
    has_kueue = bool(reader.kueue_group())
    queues = "Kueue" if has_kueue else "no Kueue"
    message = f"answers, version {version}, with {queues}; jobs run in namespace {api.namespace}"
    yield CheckResult(Verdict.OK, NAME, message)
    missing = [
        right
        for right in missing_rights(api)
        if has_kueue or not right.right.group.startswith("kueue.")
    ]
    required = [right for right in missing if right.right.is_required]
    optional = [right for right in missing if not right.right.is_required]
    for verdict, rights in ((Verdict.FAIL, required), (Verdict.WARNING, optional)):
        if rights:
            names = "; ".join(str(right) for right in rights)
            yield CheckResult(verdict, f"{NAME} rights", f"missing: {names}", RIGHTS_ADVICE)
    if not missing:
        yield CheckResult(Verdict.OK, f"{NAME} rights", "the account has all that it needs")
