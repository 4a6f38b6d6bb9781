"""What an appliance should fetch: the datasets of its attempts, and orders ahead of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from core.secretbox import SecretBox
from datasets.indexing import index_orders
from protocol.datasets import DatasetOrders, StagedDataset


def staged_datasets(
    session: Session,
    appliance_id: str,
    mounts: Mapping[str, Sequence[Mapping[str, Any]]],
    box: SecretBox,
) -> dict[str, list[StagedDataset]]:
    """Return what is staged for attempts of an appliance, by the attempt's id.

    Args:
        session: the database session.
        appliance_id: the appliance.
        mounts: the datasets of their jobs as `protocol.job_spec.DatasetMount`, by attempt; the
            version of each was chosen when the job was submitted.
        box: decrypts the credentials of sources.
    """
    return {}


def dataset_orders(session: Session, appliance_id: str, box: SecretBox) -> DatasetOrders:
    """Return what an appliance should fetch, keep and index, apart from its attempts."""
    return DatasetOrders(index=index_orders(session, appliance_id, box))
