"""Check guarantees: what projects are promised must exist, and fit into what those above have.

Pure. A project without a guarantee of its own passes on what those above it have, and promises what
those below it are promised.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.quantities import format_size
from jobqueue.projects.models import Project, QuotaResource
from jobqueue.projects.tree import ProjectTree


class QuotaKey(NamedTuple):
    """What a quota counts: a resource, and of GPUs those whose model has a word; "" is any."""

    resource: QuotaResource
    gpu_model: str = ""

    def covers(self, model: str) -> bool:
        """Return whether it counts GPUs of a model."""
        return self.resource is QuotaResource.GPUS and self.gpu_model.lower() in model.lower()

    def amount(self, value: float) -> str:
        """Return an amount with its unit, such as `4 H100 GPUs`."""
        if self.resource is QuotaResource.MEMORY_BYTES:
            return f"{format_size(int(value))} of memory"
        noun = "CPU core" if self.resource is QuotaResource.CPUS else "GPU"
        words = [f"{value:g}", self.gpu_model, noun if value == 1 else f"{noun}s"]
        return " ".join(word for word in words if word)


ALL_GPUS = QuotaKey(QuotaResource.GPUS)
Amounts = Mapping[QuotaKey, int]


class Guarantees:
    """What the projects of a tree are guaranteed, by their id, and what the tenant has."""

    def __init__(
        self, tree: ProjectTree, by_project: Mapping[str, Amounts], hardware: Amounts
    ) -> None:
        self._tree = tree
        self._own = by_project
        self._hardware = hardware

    def error(self, project: Project) -> tuple[QuotaKey, str] | None:
        """Return a guarantee of a project, or below it, that can't be kept; None if all can.

        With its key comes a sentence that names the nearest amount that can.
        """
        for key in self._keys():
            sentence = self._error(project, key)
            if sentence:
                return key, sentence
        return None

    def _error(self, project: Project, key: QuotaKey) -> str:
        own = self._own.get(project.id, {}).get(key)
        below = self._below(project.id, key)
        if own is not None and below > own:
            promised = key.amount(below)
            return (
                f"Projects below {project.name!r} are guaranteed {promised}; enter at least that."
            )
        above = self._tree.path(project.id)[1:]
        owner = next((step for step in above if key in self._own.get(step.id, {})), None)
        bound = self._hardware.get(key, 0) if owner is None else self._own[owner.id][key]
        total = self._below(None if owner is None else owner.id, key)
        if total <= bound or not self._promised(project, key):
            return ""
        has = "The tenant has" if owner is None else f"{owner.name!r} is guaranteed"
        if own is None:
            return (
                f"{has} {key.amount(bound)}, and its projects would be guaranteed "
                f"{key.amount(total)}. Lower a guarantee."
            )
        others = f", and other projects are guaranteed {key.amount(total - own)}" * (total > own)
        return f"{has} {key.amount(bound)}{others}; enter at most {max(bound - total + own, 0)}."

    def _promised(self, project: Project, key: QuotaKey) -> int:
        """Return what a project and those below it are guaranteed together."""
        own = self._own.get(project.id, {})
        if key in own:
            return own[key]
        below = self._below(project.id, key)
        if key != ALL_GPUS:
            return below
        return max(below, sum(amount for other, amount in own.items() if other.gpu_model))

    def _below(self, project_id: str | None, key: QuotaKey) -> int:
        children: Sequence[Project] = self._tree.children(project_id)
        return sum(self._promised(child, key) for child in children if child.archived_at is None)

    def _keys(self) -> list[QuotaKey]:
        keys = {key for amounts in self._own.values() for key in amounts}
        # A guarantee of a model is one of any GPU, too.
        return sorted(keys | {ALL_GPUS} if keys else keys)
