"""The reputation of a provider as users see it: figures, evidence, causes, and what would help."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.paging import MAX_PAGE_SIZE, Page
from marketplace.accounts import get_account
from marketplace.cases import Case, Dimension
from marketplace.reputation.beta import (
    PRIOR,
    WEIGHTS,
    Beta,
    Reputation,
    decay,
    overall,
)
from marketplace.reputation.days import DAY, day_of
from marketplace.reputation.models import ReputationDay
from marketplace.reputation.ratings import RATING_LIMIT
from marketplace.reputation.refresh import current
from marketplace.reputation.sources import Window
from tenants.models import OfferedAppliance
from tenants.scope import Scope

MAX_CAUSES = 5
SMALLEST_CAUSE = 0.0005
STEP, SMALLEST_STEP = 0.03, 0.005
"""What an improvement should bring of the score; what brings less than the second is left out."""
_MAX_DAYS, _MAX_CASES = 90, 50
# A rating of 5 stars by a customer that paid for 20 GPU-hours.
_RATING_WEIGHT = RATING_LIMIT.weight / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A distribution as users see it; all but `cases` are between 0 and 1.

    Attributes:
        mean: what is expected.
        low: it is above this with a probability of 95 %.
        high: it is below this with a probability of 95 %.
        cases: how many count, each by its weight and age.
    """

    mean: float
    low: float
    high: float
    cases: float

    @classmethod
    def of(cls, distribution: Beta) -> "Figure":
        """Return the figure of a distribution."""
        low, high = distribution.interval()
        total = distribution.alpha + distribution.beta - PRIOR.alpha - PRIOR.beta
        return cls(mean=distribution.mean, low=low, high=high, cases=max(total, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionFigure:
    """A dimension, how much of the overall figure it is, 0 to 1, and its own figure."""

    dimension: Dimension
    share: float
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Cases of a kind that cost something.

    Attributes:
        cost: what the score would be higher without them, 0 to 1.
        count: how many entries of the evidence.
        half_at: when the latest counts half.
    """

    dimension: Dimension
    kind: str
    cost: float
    count: int
    half_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """What would raise a dimension.

    Attributes:
        amount: how many days or cases.
        text: a sentence that says what, and what it brings.
        gain: what the score would be higher, 0 to 1.
    """

    dimension: Dimension
    amount: int
    text: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The reputation of a provider with all its cases."""

    provider_id: str
    reputation: Reputation
    cases: Sequence[Case]
    window: Window
    appliances: int

    @property
    def score(self) -> float:
        """What placement and lists rank by, 0 to 1."""
        return self.reputation.score

    @property
    def overall(self) -> Figure:
        """The weighted mean of all dimensions."""
        figure = Figure.of(self.reputation.overall)
        cases = fsum(row.figure.cases for row in self.dimensions)
        return Figure(mean=figure.mean, low=figure.low, high=figure.high, cases=cases)

    @property
    def dimensions(self) -> list[DimensionFigure]:
        """The dimensions, those that count most first."""
        return dimension_figures(self.reputation.dimensions)

    @property
    def causes(self) -> list[Cause]:
        """The kinds of cases that cost most, the worst first."""
        return _causes(self)

    @property
    def improvements(self) -> list[Improvement]:
        """What would raise the score, by dimension."""
        return _improvements(self)

    def weight_of(self, case: Case) -> float:
        """Return how much a case counts now."""
        return case.weight * decay(self.window.now - case.at, self.window.half_life)

    def kinds(self) -> dict[Dimension, list[str]]:
        """Return the kinds of evidence of each dimension, by name."""
        kinds: dict[Dimension, set[str]] = defaultdict(set)
        for case in self.cases:
            kinds[case.dimension].add(case.kind)
        return {name: sorted(kinds[name]) for name in WEIGHTS if name in kinds}

    def evidence(
        self,
        *,
        dimension: Dimension | None = None,
        kind: str = "",
        page: int = 1,
        page_size: int = 50,
    ) -> Page[Case]:
        """Return a page of the cases, the latest first."""
        matching = [
            case
            for case in self.cases
            if dimension in {None, case.dimension} and kind in {"", case.kind}
        ]
        size = max(1, min(page_size, MAX_PAGE_SIZE))
        start = (max(1, page) - 1) * size
        return Page(matching[start : start + size], len(matching), max(1, page), size)


def report_of(
    session: Session, scope: Scope, tenant_id: str = "", *, now: datetime, half_life: timedelta
) -> Report:
    """Return the reputation of the scope's tenant as a provider, or of any for the operator.

    Raises:
        NotFoundError: the tenant does not exist, or is another one.
    """
    provider_id = get_account(session, scope, tenant_id).tenant_id
    window = Window(now=now, half_life=half_life)
    measured, cases = current(session, provider_id, window)
    offered = select(func.count()).where(OfferedAppliance.provider_id == provider_id)
    return Report(
        provider_id=provider_id,
        reputation=measured,
        cases=cases,
        window=window,
        appliances=session.scalar(offered) or 0,
    )


def history_of(
    session: Session, scope: Scope, tenant_id: str = "", *, days: int, now: datetime
) -> Sequence[ReputationDay]:
    """Return the reputation of the last days, the earliest first; see `report_of`."""
    provider_id = get_account(session, scope, tenant_id).tenant_id
    statement = select(ReputationDay).where(
        ReputationDay.provider_id == provider_id, ReputationDay.day_at > day_of(now) - days * DAY
    )
    return session.scalars(statement.order_by(ReputationDay.day_at)).all()


def public_dimensions(session: Session, provider_id: str) -> list[DimensionFigure]:
    """Return the dimensions of a provider as everybody sees them, as of the last refresh."""
    latest = session.scalars(
        select(ReputationDay)
        .where(ReputationDay.provider_id == provider_id)
        .order_by(ReputationDay.day_at.desc())
        .limit(1)
    ).one_or_none()
    stored = {} if latest is None else latest.dimensions
    return dimension_figures({name: Beta(*stored[name]) for name in Dimension if name in stored})


def dimension_figures(dimensions: Mapping[Dimension, Beta]) -> list[DimensionFigure]:
    """Return the figures of all dimensions, those that count most first."""
    return [
        DimensionFigure(dimension=name, share=share, figure=Figure.of(dimensions.get(name, PRIOR)))
        for name, share in WEIGHTS.items()
    ]


def _causes(report: Report) -> list[Cause]:
    by_kind: dict[tuple[Dimension, str], list[Case]] = defaultdict(list)
    for case in report.cases:
        by_kind[case.dimension, case.kind].append(case)
    causes = []
    for (dimension, kind), cases in by_kind.items():
        part = report.reputation.dimensions[dimension]
        for case in cases:
            part = part.with_case(case.good, -report.weight_of(case))
        cost = _score_with(report, dimension, _at_least_prior(part)) - report.score
        if cost >= SMALLEST_CAUSE:
            half_at = max(case.at for case in cases) + report.window.half_life
            causes.append(
                Cause(
                    dimension=dimension,
                    kind=kind,
                    cost=cost,
                    count=len(cases),
                    half_at=half_at,
                )
            )
    return sorted(causes, key=lambda cause: cause.cost, reverse=True)[:MAX_CAUSES]


def _improvements(report: Report) -> list[Improvement]:
    candidates = (_improvement(report, name) for name in WEIGHTS)
    present = [candidate for candidate in candidates if candidate is not None]
    return sorted(present, key=lambda improvement: improvement.gain, reverse=True)


def _improvement(report: Report, dimension: Dimension) -> Improvement | None:
    """Return how many good days or cases raise the score by a step, or by what is possible."""
    is_daily = dimension is Dimension.AVAILABILITY
    weight = {
        Dimension.AVAILABILITY: float(max(report.appliances, 1)),
        Dimension.SATISFACTION: _RATING_WEIGHT,
    }.get(dimension, 1.0)
    part = report.reputation.dimensions[dimension]
    before, gain, amount = part.mean, 0.0, 0
    while gain < STEP and amount < (_MAX_DAYS if is_daily else _MAX_CASES):
        amount += 1
        if is_daily:
            part = part.faded(decay(DAY, report.window.half_life))
        part = part.with_case(1.0, weight)
        gain = _score_with(report, dimension, part) - report.score
    if gain < SMALLEST_STEP:
        return None
    text = _sentence(report, dimension, amount, before=before, after=part.mean, gain=gain)
    return Improvement(dimension=dimension, amount=amount, text=text, gain=gain)


def _sentence(
    report: Report, dimension: Dimension, amount: int, *, before: float, after: float, gain: float
) -> str:
    ending = "" if amount == 1 else "s"
    appliances = (
        "your appliance on offer"
        if report.appliances <= 1
        else f"all {report.appliances} appliances on offer"
    )
    what = {
        Dimension.AVAILABILITY: (
            f"{amount} more day{ending} with {appliances} reachable at least 99.9 % of the time"
        ),
        Dimension.JOBS: (
            f"{amount} more job{ending} of new customers that no fault of your appliances ends"
        ),
        Dimension.CHECKS: f"{amount} more check{ending} passed",
        Dimension.RESPONSE: f"{amount} more request{ending} of customers answered in time",
        Dimension.SATISFACTION: (
            f"{amount} more rating{ending} of 5 stars, of customers with 20 GPU-hours each,"
        ),
    }[dimension]
    verb = "raises" if amount == 1 else "raise"
    return (
        f"{what} {verb} {dimension.value} from {100 * before:.0f} to {100 * after:.0f}, "
        f"and the score by {100 * gain:.1f}."
    )


def _score_with(report: Report, dimension: Dimension, part: Beta) -> float:
    return overall({**report.reputation.dimensions, dimension: part}).score


def _at_least_prior(part: Beta) -> Beta:
    """Return a distribution without the rounding errors of what was taken off."""
    return Beta(max(part.alpha, PRIOR.alpha), max(part.beta, PRIOR.beta))
