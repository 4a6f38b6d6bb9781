"""The lists of a store, answered by a part of it that knows them."""

from typing import Protocol


class Lists(Protocol):
    """What there is in a store; each call may raise `StoreUnavailableError`."""

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""


class Listed:
    """The part of a `Store` that lists, for a store whose `_lists` knows."""

    _lists: Lists

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        return self._lists.measurements(tenants=tenants)

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""
        return self._lists.fields(measurement, tenants=tenants)

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        return self._lists.tags(measurement, tenants=tenants)

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        return self._lists.tag_values(measurement, tag, tenants=tenants)
