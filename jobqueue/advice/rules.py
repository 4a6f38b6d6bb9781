"""Advice that follows from figures and prices; pure.

Each advice has a key by which it is dismissed, and which the next computation gives it again.
GPU-hours are those of the period; amounts are those of a month, which has 730 hours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np

from core.money import cents, format_amount
from core.quantities import format_duration
from jobqueue.advice.figures import (
    Addition,
    ApplianceFigures,
    FleetFigures,
    ModelFigures,
    high_hours,
)

MONTH_HOURS = 730
MIN_HOURS = 7 * 24
# What is less is not worth a change.
MIN_GPU_HOURS_PER_WEEK = 5.0
MUCH_FREE_RATIO = 0.3
MUCH_IDLE_RATIO = 0.25
MUCH_BLOCKED_RATIO = 0.25
MAX_NAMED = 20
_WEEK_HOURS = 7 * 24


class AdviceKind(StrEnum):
    """What advice is about, in the order of lists."""

    SHORT = "short"
    BLOCKED = "blocked"
    UNUSED = "unused"
    IDLE_ALLOCATION = "idle_allocation"
    FREE_HOURS = "free_hours"


class AdviceAction(StrEnum):
    """What to do."""

    ADD = "add"
    RENT = "rent"
    OFFER = "offer"
    REVIEW = "review"
    SCHEDULE = "schedule"
    LIMIT = "limit"
    DRAIN = "drain"


class AmountKind(StrEnum):
    """What an amount of money stands for."""

    SAVED = "saved"
    EARNED = "earned"
    WORTH = "worth"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrices:
    """Prices of a GPU of a model for an hour; None where there is none.

    Attributes:
        own: by the tenant's price list.
        rent: the lowest of other providers' offers, as the mean over the hours that are short.
        median: of other providers' offers now.
        offers: how many there are.
        offered_gpus: own GPUs that are on offer already.
    """

    own: Decimal | None = None
    rent: Decimal | None = None
    median: Decimal | None = None
    offers: int = 0
    offered_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices by GPU model; `has_market` says whether appliances can be rented and offered."""

    currency: str = ""
    has_market: bool = False
    models: Mapping[str, ModelPrices] = field(default_factory=dict)

    def of(self, model: str) -> ModelPrices:
        """Return the prices of a model."""
        return self.models.get(model, ModelPrices())


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One piece of advice.

    Attributes:
        key: the same in the next computation.
        title: what was found.
        evidence: sentences with the numbers.
        gpu_hours: its size, in the period.
        amount: of a month; None without prices.
        amount_kind: what that is; None without.
        action: what to do.
        action_text: the same as a sentence.
        appliances: it is about, the first `MAX_NAMED`.
    """

    key: str
    kind: AdviceKind
    gpu_model: str
    title: str
    evidence: Sequence[str]
    gpu_hours: float
    amount: Decimal | None = None
    amount_kind: AmountKind | None = None
    action: AdviceAction
    action_text: str
    appliances: Sequence[ApplianceFigures] = ()


def too_little(figures: FleetFigures) -> str:
    """Return why nothing can be advised yet; nothing if there is enough data."""
    if not figures.appliances and not figures.models:
        return "There are no appliances with GPUs, and no jobs that asked for some."
    if figures.hours < MIN_HOURS:
        return (
            f"There are {figures.hours} hours of data, and advice needs {MIN_HOURS}: a week. "
            "Come back later."
        )
    return ""


def short_slots(figures: FleetFigures) -> dict[str, list[int]]:
    """Return the hours of the week in UTC, from Monday on, in which models are short."""
    slots = figures.slots(UTC)
    listed = {row.gpu_model: slots[row.short() > 0] for row in figures.models}
    return {model: np.unique(hours).tolist() for model, hours in listed.items() if hours.size}


def advise(figures: FleetFigures, prices: Prices, *, zone: tzinfo) -> list[Advice]:
    """Return the advice: in the order of kinds, and of each kind the largest first.

    Args:
        figures: of a period.
        prices: to compare with.
        zone: of hours in texts.
    """
    if too_little(figures):
        return []
    rules = _Rules(figures, prices, zone)
    listed = [advice for row in figures.models for advice in rules.of_model(row)]
    order = list(AdviceKind)
    return sorted(
        listed, key=lambda advice: (order.index(advice.kind), -advice.gpu_hours, advice.key)
    )


class _Rules:
    def __init__(self, figures: FleetFigures, prices: Prices, zone: tzinfo) -> None:
        self._figures, self._prices, self._zone = figures, prices, zone
        self._min_gpu_hours = MIN_GPU_HOURS_PER_WEEK * figures.hours / _WEEK_HOURS
        self._monthly = MONTH_HOURS / figures.hours
        self._additions = {addition.gpu_model: addition for addition in figures.additions}

    def of_model(self, row: ModelFigures) -> Iterator[Advice]:
        """Yield the advice about a model."""
        if (short := float(row.short().sum())) >= self._min_gpu_hours:
            yield self._short(row, short)
        waiting, blocked = sum(row.waiting), float(row.blocked().sum())
        if blocked >= max(self._min_gpu_hours, MUCH_BLOCKED_RATIO * waiting):
            yield self._blocked(row, blocked)
        unused = [
            appliance
            for appliance in self._figures.appliances
            if appliance.gpu_model == row.gpu_model
            and appliance.gpus
            and not appliance.allocated_gpu_hours
            and appliance.capacity_gpu_hours >= self._min_gpu_hours * appliance.gpus
        ]
        if unused:
            yield self._unused(row, unused)
        yield from self._free_hours(row, unused)
        idle, allocated = sum(row.idle), sum(row.allocated)
        if idle >= max(self._min_gpu_hours, MUCH_IDLE_RATIO * allocated):
            yield self._idle(row, idle, allocated)

    def _short(self, row: ModelFigures, short: float) -> Advice:
        prices, addition = self._prices.of(row.gpu_model), self._additions.get(row.gpu_model)
        evidence = [
            f"Jobs asked for {_hours(short)} more than there were"
            + self._when(row.short(), ", mostly ")
            + "."
        ]
        if row.wait_seconds_p50 is not None and row.wait_seconds_p95 is not None:
            evidence.append(
                f"Half of {row.jobs:,} jobs waited at most "
                f"{format_duration(row.wait_seconds_p50)}, and 95 % at most "
                f"{format_duration(row.wait_seconds_p95)}."
            )
        if sum(row.rented) >= 1:
            evidence.append(f"{_hours(sum(row.rented))} of the demand ran on rented GPUs.")
        if addition:
            evidence.append(_addition_text(addition))
        comparison = self._comparison(row, prices, addition)
        action = AdviceAction.RENT if comparison and comparison.is_rent else AdviceAction.ADD
        if comparison:
            evidence.append(comparison.text)
        elif self._prices.has_market:
            evidence.append(_missing_price(prices))
        if not row.gpus and not comparison and prices.rent is not None:
            action = AdviceAction.RENT
        like = f" like {addition.appliance}" if addition else ""
        return Advice(
            key=f"{AdviceKind.SHORT}:{row.gpu_model}",
            kind=AdviceKind.SHORT,
            gpu_model=row.gpu_model,
            title=f"Too few {row.gpu_model} GPUs"
            if row.gpus
            else f"No appliance has {row.gpu_model}",
            evidence=evidence,
            gpu_hours=short,
            amount=comparison.difference if comparison else None,
            amount_kind=AmountKind.SAVED if comparison else None,
            action=action,
            action_text="Rent GPUs for these hours."
            if action is AdviceAction.RENT
            else f"Add an appliance{like}.",
        )

    def _comparison(
        self, row: ModelFigures, prices: ModelPrices, addition: Addition | None
    ) -> "_Comparison | None":
        """Compare renting the short hours with one more own appliance."""
        if not prices.own or not prices.rent:
            return None
        gpus = addition.gpus if addition else max(1, round(row.gpus / max(row.appliances, 1)))
        covered = float(np.minimum(row.short(), gpus).sum()) * self._monthly
        rent = cents(prices.rent * Decimal(str(round(covered, 6))))
        own = cents(prices.own * gpus * MONTH_HOURS)
        break_even = prices.own * MONTH_HOURS / prices.rent
        shown_gpus = f"{gpus} more own GPU{'' if gpus == 1 else 's'}"
        limit = (
            f"Renting is cheaper below {break_even:,.0f} of {MONTH_HOURS} hours a month per GPU"
            if break_even < MONTH_HOURS
            else "Renting is cheaper for any number of hours"
        )
        text = (
            f"A month of {shown_gpus} costs {self._money(own)} by your price list. Renting the "
            f"{_hours(covered)} a month that they would run costs {self._money(rent)}. {limit}; "
            f"these are {covered / gpus:,.0f}."
        )
        return _Comparison(rent < own, abs(own - rent), text)

    def _blocked(self, row: ModelFigures, blocked: float) -> Advice:
        return Advice(
            key=f"{AdviceKind.BLOCKED}:{row.gpu_model}",
            kind=AdviceKind.BLOCKED,
            gpu_model=row.gpu_model,
            title=f"Jobs waited beside free {row.gpu_model} GPUs",
            evidence=[
                f"{_hours(blocked)} of the {_hours(sum(row.waiting))} that jobs waited for "
                f"{row.gpu_model} passed while as many were free"
                + self._when(row.blocked(), ", mostly ")
                + ".",
                (
                    "The reason may be labels, quotas, reservations, missing cores or memory, or "
                    "GPUs that are free on several appliances."
                ),
            ],
            gpu_hours=blocked,
            action=AdviceAction.REVIEW,
            action_text="Simulate other rules, and check labels, quotas and reservations.",
        )

    def _unused(self, row: ModelFigures, unused: Sequence[ApplianceFigures]) -> Advice:
        gpu_hours = sum(appliance.capacity_gpu_hours for appliance in unused)
        gpus = sum(appliance.gpus for appliance in unused)
        count = "1 appliance" if len(unused) == 1 else f"{len(unused)} appliances"
        can_offer = self._prices.has_market and not self._prices.of(row.gpu_model).offered_gpus
        return Advice(
            key=f"{AdviceKind.UNUSED}:{row.gpu_model}",
            kind=AdviceKind.UNUSED,
            gpu_model=row.gpu_model,
            title=f"{count} with {row.gpu_model} had no jobs",
            evidence=[
                (
                    f"{gpus} GPU{' was' if gpus == 1 else 's were'} ready for {_hours(gpu_hours)}, "
                    f"and no job was placed there in {_days(self._figures.hours)}."
                ),
            ],
            gpu_hours=gpu_hours,
            **self._worth(row, gpu_hours, is_earned=can_offer),
            action=AdviceAction.OFFER if can_offer else AdviceAction.DRAIN,
            action_text="Check their labels and reservations, or offer them to others."
            if can_offer
            else "Check their labels and reservations, or drain and turn them off.",
            appliances=unused[:MAX_NAMED],
        )

    def _free_hours(
        self, row: ModelFigures, unused: Sequence[ApplianceFigures]
    ) -> Iterator[Advice]:
        """Yield advice on GPUs that are free at the same hours of each week."""
        prices, capacity = self._prices.of(row.gpu_model), sum(row.capacity)
        free = np.maximum(row.free() - sum(appliance.gpus for appliance in unused), 0.0)
        # Whole GPUs that were free in this hour of every week.
        slots, always = self._figures.slots(UTC), np.full(_WEEK_HOURS, np.inf)
        np.minimum.at(always, slots, np.floor(free + 1e-6))
        steady = np.where(np.isfinite(always), always, 0.0)[slots]
        gpu_hours = float(steady.sum())
        if gpu_hours < max(self._min_gpu_hours, MUCH_FREE_RATIO * capacity):
            return
        can_offer = self._prices.has_market and not prices.offered_gpus
        yield Advice(
            key=f"{AdviceKind.FREE_HOURS}:{row.gpu_model}",
            kind=AdviceKind.FREE_HOURS,
            gpu_model=row.gpu_model,
            title=f"{row.gpu_model} GPUs are free at the same hours each week",
            evidence=[
                f"{100 * sum(row.allocated) / capacity:.0f} % of {_hours(capacity)} were "
                f"allocated. {_hours(gpu_hours)} were free in the same hours of every week"
                + self._when(steady, ", mostly ")
                + "."
            ],
            gpu_hours=gpu_hours,
            **self._worth(row, gpu_hours, is_earned=can_offer),
            action=AdviceAction.OFFER if can_offer else AdviceAction.SCHEDULE,
            action_text="Offer these hours to other tenants by a calendar."
            if can_offer
            else "Schedule batch jobs for these hours.",
        )

    def _idle(self, row: ModelFigures, idle: float, allocated: float) -> Advice:
        own = self._prices.of(row.gpu_model).own
        return Advice(
            key=f"{AdviceKind.IDLE_ALLOCATION}:{row.gpu_model}",
            kind=AdviceKind.IDLE_ALLOCATION,
            gpu_model=row.gpu_model,
            title=f"Jobs left {row.gpu_model} GPUs idle",
            evidence=[
                f"{_hours(idle)} of the {_hours(allocated)} allocated were idle: no kernel ran"
                + self._when(np.asarray(row.idle), ", mostly ")
                + "."
            ],
            gpu_hours=idle,
            amount=self._month(own, idle),
            amount_kind=AmountKind.WORTH if own else None,
            action=AdviceAction.LIMIT,
            action_text="See which jobs, and set idle limits on them.",
        )

    def _worth(self, row: ModelFigures, gpu_hours: float, *, is_earned: bool) -> dict[str, Any]:
        """Return what GPU-hours would earn at the median price, or are worth by the price list."""
        prices = self._prices.of(row.gpu_model)
        price = prices.median if is_earned else prices.own
        kind = AmountKind.EARNED if is_earned else AmountKind.WORTH
        return {"amount": self._month(price, gpu_hours), "amount_kind": kind if price else None}

    def _month(self, price: Decimal | None, gpu_hours: float) -> Decimal | None:
        if not price:
            return None
        return cents(price * Decimal(str(round(gpu_hours * self._monthly, 6))))

    def _when(self, values: np.ndarray, before: str) -> str:
        hours = high_hours(self._figures.week(values, self._zone))
        return f"{before}{hours}" if hours else ""

    def _money(self, amount: Decimal) -> str:
        return format_amount(amount, self._prices.currency)


@dataclass(frozen=True, slots=True)
class _Comparison:
    is_rent: bool
    difference: Decimal
    text: str


def _hours(gpu_hours: float) -> str:
    """Return GPU-hours with their unit."""
    is_whole = gpu_hours >= 10 or not gpu_hours  # noqa: PLR2004 - digits
    shown = f"{gpu_hours:,.0f}" if is_whole else f"{gpu_hours:.1f}"
    return f"{shown} GPU-hours"


def _days(hours: int) -> str:
    return f"{hours / 24:,.0f} days"


def _addition_text(addition: Addition) -> str:
    """Return what one more appliance would have changed, as a sentence."""
    today, changed = addition.today, addition.changed
    if today.wait_seconds_p95 is None or changed.wait_seconds_p95 is None:
        return "No job has started in the simulation."
    return (
        f"With one more appliance like {addition.appliance} ({addition.gpus} GPUs), all jobs would "
        f"have waited {_hours(changed.waiting_gpu_hours)} instead of "
        f"{_hours(today.waiting_gpu_hours)}, and 95 % of them at most "
        f"{format_duration(changed.wait_seconds_p95)} instead of "
        f"{format_duration(today.wait_seconds_p95)}, by a simulation."
    )


def _missing_price(prices: ModelPrices) -> str:
    if prices.rent is None:
        return "No other tenant offers this model now."
    return "Your price list has no price of this model, so that renting can't be compared."
