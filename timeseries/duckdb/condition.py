"""Which rows a read may see and needs: the WHERE clause, with every value of a caller bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timeseries.duckdb.schema import CLUSTER_COLUMN, Table, cluster_of, quoted, tag_column
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

MAX_NEAR = 32
"""The samples of more appliances are nearly everywhere."""

_CLUSTER = quoted(CLUSTER_COLUMN)


@dataclass(slots=True)
class Condition:
    """A WHERE clause and the values bound to it; `is_never` where nothing can match."""

    clauses: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)
    is_never: bool = False

    def add(self, clause: str, *values: object) -> None:
        """Demand one more thing."""
        self.clauses.append(clause)
        self.values.extend(values)

    def among(self, tag: str, values: Sequence[str], table: Table) -> None:
        """Demand that a tag has one of these values; "" stands for a sample without the tag."""
        column = quoted(tag_column(tag))
        named = [value for value in values if value]
        is_absent_welcome = len(named) < len(values)
        if tag not in table.tags or not named:
            self.is_never = self.is_never or not is_absent_welcome
            if tag in table.tags and is_absent_welcome:
                self.add(f"{column} IS NULL")
            return
        clause = f"{column} IN ({', '.join('?' * len(named))})"
        self.add(f"({clause} OR {column} IS NULL)" if is_absent_welcome else clause, *named)

    def near(self, filters: Mapping[str, Sequence[str]]) -> None:
        """Pass by samples that are laid together with those of other appliances than these."""
        if is_near(filters):
            numbers = sorted({cluster_of(name) for name in filters[APPLIANCE_TAG]})
            # Of several the database looks at every sample again; of one it passes them by.
            self.add(f"{_CLUSTER} IN ({', '.join(map(str, numbers))})")

    @property
    def sql(self) -> str:
        """The clause with its keyword, or nothing."""
        return "WHERE " + " AND ".join(self.clauses) if self.clauses else ""


def is_near(filters: Mapping[str, Sequence[str]]) -> bool:
    """Return whether filters keep to some appliances, by name."""
    names = filters.get(APPLIANCE_TAG, ())
    return 0 < len(names) <= MAX_NEAR and all(names)


def visible(
    table: Table,
    *,
    tenants: Sequence[str] | None,
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Condition:
    """Return the condition that keeps to these tenants and filters."""
    condition = Condition()
    if tenants is not None:
        condition.among(TENANT_TAG, [tenant for tenant in tenants if tenant], table)
    for tag, values in (filters or {}).items():
        condition.among(tag, values, table)
    return condition
