"""Attempts wait for their datasets, and get them as read-only mounts."""

from collections.abc import Collection

import msgspec

from collector.datasets.errors import DataError
from collector.datasets.stager import Stager
from collector.jobs.preparations import Preparation, PreparationError
from protocol.attempts import AttemptSpec, StagingProgress
from protocol.job_spec import Mount

DATA_UNAVAILABLE = "data_unavailable"


class DatasetPreparation(Preparation):
    """Prepares attempts with datasets.

    Without a stager the agent can fetch none, and says so.
    """

    def __init__(self, stager: Stager | None) -> None:
        self._stager = stager

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt with its datasets mounted; None while they are fetched."""
        datasets = [dataset for dataset in spec.datasets if dataset.target]
        if not datasets:
            return spec
        if self._stager is None:
            raise PreparationError(
                DATA_UNAVAILABLE,
                "The agent of this appliance can't fetch datasets: it was installed without the "
                "extra `data`, or [datasets] turns it off. Install vedette[data], or run the job "
                "on another appliance.",
            )
        try:
            trees = self._stager.trees(spec.attempt_id, datasets)
        except DataError as error:
            raise PreparationError(DATA_UNAVAILABLE, str(error)) from error
        if trees is None:
            return None
        mounts = [
            Mount(source=tree, target=dataset.target, is_read_only=True)
            for tree, dataset in zip(trees, datasets, strict=True)
        ]
        return msgspec.structs.replace(spec, mounts=[*spec.mounts, *mounts])

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:
        """Return what an attempt waits for."""
        return self._stager.progress(attempt_id) if self._stager is not None else ("", None)

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        """Release the datasets of other attempts."""
        if self._stager is not None:
            self._stager.forget(attempt_ids)

    def close(self) -> None:
        """End the threads of the stager."""
        if self._stager is not None:
            self._stager.close()
