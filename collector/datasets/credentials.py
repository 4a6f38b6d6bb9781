"""Credentials of sources stay in memory: what is stored of a desired state has none."""

import msgspec

from protocol.attempts import DesiredState
from protocol.datasets import DatasetOrders, DatasetSource, StagedDataset


def without_credentials(desired: DesiredState) -> DesiredState:
    """Return a desired state as it may be stored."""
    orders = desired.datasets
    return msgspec.structs.replace(
        desired,
        attempts=[
            msgspec.structs.replace(spec, datasets=_stripped(spec.datasets), registry=None)
            if spec.datasets or spec.registry
            else spec
            for spec in desired.attempts
        ],
        datasets=DatasetOrders(
            prefetch=_stripped(orders.prefetch),
            pinned=_stripped(orders.pinned),
            index=[
                msgspec.structs.replace(order, source=_public(order.source))
                for order in orders.index
            ],
            peers=orders.peers,
        ),
    )


def _stripped(datasets: list[StagedDataset]) -> list[StagedDataset]:
    return [
        msgspec.structs.replace(dataset, source=_public(dataset.source)) for dataset in datasets
    ]


def _public(source: DatasetSource) -> DatasetSource:
    """Return where a source is, without what could be secret: an address may contain a token."""
    return DatasetSource(kind=source.kind)
