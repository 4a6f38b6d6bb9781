"""Images of gangs' members are pulled before the common start."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

import msgspec
import pytest

from collector.jobs.images import RETRY_SECONDS, ImagePreparation
from collector.jobs.preparations import PreparationError, Preparations
from jobqueue.executors.base import ExecutorError, ImageError
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.gangs import Gang
from tests.fixtures.polling import eventually


@dataclass
class Engine:
    """Pulls an image once it may, or fails."""

    may_pull: Event = field(default_factory=Event)
    pulled: list[str] = field(default_factory=list)
    failure: Exception | None = None
    is_cancelled: bool = False

    def pull_image(
        self, spec: AttemptSpec, on_progress: Callable[[str], bool], note: Callable[..., None]
    ) -> None:
        note(pull_began_at_ns=5)
        while not self.may_pull.wait(0.01):
            if not on_progress("Pulling image train: 1 of 2 layers."):
                self.is_cancelled = True
                raise ExecutorError("cancelled")
        if self.failure is not None:
            raise self.failure
        note(pull_ended_at_ns=9)
        self.pulled.append(spec.image)


class Site:
    """An engine, and the preparations of its agent."""

    def __init__(self) -> None:
        self.engine, self.now, self.woken = Engine(), 0.0, Event()
        self.images = ImagePreparation(self.engine, wake=self.woken.set, monotonic=lambda: self.now)
        self.preparations = Preparations([self.images])

    def step(self, spec: AttemptSpec) -> AttemptSpec | None:
        self.preparations.update([spec], ())
        return self.preparations.prepared(spec)

    def message(self) -> str:
        return self.preparations.observations()["a"].message

    def is_prepared(self) -> bool:
        return self.preparations.observations()["a"].is_prepared


def member(*, may_start: bool = False) -> AttemptSpec:
    gang = Gang(gang_id="g", rank=0, members=[], may_start=may_start)
    return AttemptSpec(attempt_id="a", job_id="j", name="train", image="train", gang=gang)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_member_is_prepared_once_its_image_is_there(site: Site) -> None:
    assert site.step(member()) is None
    eventually(lambda: "1 of 2 layers" in site.message(), what="progress")
    assert not site.is_prepared()
    site.engine.may_pull.set()
    assert site.woken.wait(10)
    assert site.step(member()) is None
    assert site.is_prepared()
    assert site.step(member(may_start=True)) == member(may_start=True)
    assert site.engine.pulled == ["train"]


def test_jobs_outside_of_gangs_and_gangs_that_may_start_do_not_wait(site: Site) -> None:
    plain = AttemptSpec(attempt_id="a", job_id="j", name="train", image="train")
    assert site.step(plain) == plain
    assert site.step(member(may_start=True)) == member(may_start=True)
    assert site.engine.pulled == []


def test_an_image_that_does_not_exist_fails_the_attempt(site: Site) -> None:
    site.engine.failure = ImageError("image_not_found", "Image 'train' not found.")
    site.engine.may_pull.set()
    site.preparations.update([member()], ())
    assert site.woken.wait(10)
    with pytest.raises(PreparationError, match="Image 'train' not found") as caught:
        site.preparations.prepared(member())
    assert caught.value.reason == "image_not_found"
    site.preparations.update([member()], ())  # until the portal knows, it is not pulled again
    with pytest.raises(PreparationError):
        site.preparations.prepared(member())


def test_an_engine_that_is_away_is_asked_again_later(site: Site) -> None:
    site.engine.failure = ExecutorError("no engine")
    site.engine.may_pull.set()
    assert site.step(member()) is None
    assert site.woken.wait(10)
    site.engine.failure = None
    assert site.step(member()) is None
    assert site.message() == "Pulling image train again soon: no engine."
    assert site.engine.pulled == []
    site.now = RETRY_SECONDS
    site.woken.clear()
    assert site.step(member()) is None
    assert site.woken.wait(10)
    assert site.engine.pulled == ["train"]


def test_the_pull_for_an_attempt_that_is_stopped_ends(site: Site) -> None:
    assert site.step(member()) is None
    site.preparations.keep_only((), ())
    eventually(lambda: site.engine.is_cancelled, what="the end of the pull")


def test_the_times_of_a_pull_before_the_common_start_are_reported(site: Site) -> None:
    def times(seen: AttemptObservation) -> tuple[int | None, int | None]:
        return seen.pull_began_at_ns, seen.pull_ended_at_ns

    site.step(member())
    eventually(lambda: times(site.preparations.observations()["a"]) == (5, None), what="the pull")
    site.engine.may_pull.set()
    eventually(lambda: times(site.preparations.observations()["a"]) == (5, 9), what="its end")
    site.step(member(may_start=True))
    running = AttemptObservation(attempt_id="a", state=ObservedState.RUNNING)
    assert times(site.preparations.review([running])[0]) == (5, 9)
    # A rented attempt's image is pulled at the start, too, to check that it may have it.
    pulled_again = msgspec.structs.replace(running, pull_began_at_ns=20, pull_ended_at_ns=21)
    assert site.preparations.review([pulled_again]) == [pulled_again]
