"""The simulated executor by a clock that the test moves: times, endings, load, logs, restarts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobqueue.executors.simulated.executor import SimulatedExecutor
from protocol.attempts import AttemptSpec, ObservedState
from protocol.logs import plain_log
from protocol.storage import CleanupOrder

GIB = 2**30
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SPEC = AttemptSpec(
    attempt_id="a",
    job_id="j",
    name="train",
    image="train:1",
    env={"SIM_SECONDS": "60"},
    gpu_uuids=["GPU-1", "GPU-2"],
    cpus=8,
    memory_bytes=1_000_000,
)


class Bench:
    """An executor, its time, and the load it has put on the hardware."""

    def __init__(self, folder: Path) -> None:
        self.now = NOON
        self.loads: dict[str, datetime] = {}
        self.folder = folder
        self.executor = self.reopen()

    def reopen(self) -> SimulatedExecutor:
        self.executor = SimulatedExecutor(
            lambda: self.now,
            on_work=lambda spec, started_at: self.loads.update({spec.attempt_id: started_at}),
            on_end=self.end,
            state_path=self.folder / "attempts.json",
            disk=lambda: (100 * GIB, 10 * GIB),
        )
        return self.executor

    def end(self, attempt_id: str) -> None:
        del self.loads[attempt_id]

    def at(self, seconds: float) -> ObservedState:
        self.now = NOON + timedelta(seconds=seconds)
        [seen] = self.executor.observe()
        return seen.state

    def log(self) -> str:
        return plain_log(self.records(), with_times=True).decode()

    def records(self) -> bytes:
        return self.executor.read_log("a", offset=0, limit=10_000_000)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def changed(**changes: object) -> AttemptSpec:
    fields = {name: getattr(SPEC, name) for name in SPEC.__struct_fields__}
    return AttemptSpec(**{**fields, **changes})


def test_an_attempt_starts_runs_and_ends_in_its_time(bench: Bench) -> None:
    bench.executor.start(SPEC)
    states = [bench.at(seconds) for seconds in (0, 1.9, 2, 61, 62)]
    assert states == [
        ObservedState.STARTING,
        ObservedState.STARTING,
        ObservedState.RUNNING,
        ObservedState.RUNNING,
        ObservedState.SUCCEEDED,
    ]


def test_without_a_duration_it_takes_four_minutes(bench: Bench) -> None:
    bench.executor.start(changed(env={}))
    assert bench.at(241) is ObservedState.RUNNING
    assert bench.at(242) is ObservedState.SUCCEEDED


def test_a_duration_that_is_no_number_is_the_default(bench: Bench) -> None:
    bench.executor.start(changed(env={"SIM_SECONDS": "soon"}))
    assert bench.at(200) is ObservedState.RUNNING


def test_a_service_ignores_the_duration(bench: Bench) -> None:
    bench.executor.start(changed(is_service=True))
    assert bench.at(86_400) is ObservedState.RUNNING


def test_load_is_on_the_hardware_while_it_runs_only(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(1)
    assert bench.loads == {}
    bench.at(30)
    assert bench.loads == {"a": datetime(2026, 3, 1, 12, 0, 2, tzinfo=UTC)}
    bench.at(63)
    assert bench.loads == {}


def test_a_stop_takes_the_load_off_at_once(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(30)
    bench.executor.stop("a", grace_seconds=10)
    assert bench.loads == {}
    assert bench.at(31) is ObservedState.STOPPED


def test_a_stop_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(100)
    bench.executor.stop("a", grace_seconds=10)
    assert bench.at(101) is ObservedState.SUCCEEDED


def test_a_missing_image_puts_no_load_and_writes_no_log(bench: Bench) -> None:
    bench.executor.start(changed(image="registry/missing:1"))
    assert bench.at(3) is ObservedState.FAILED
    assert bench.loads == {}
    assert bench.log() == ""


def test_the_log_grows_with_time_and_never_changes(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(10)
    early = bench.log()
    bench.at(40)
    assert "2026-03-01T12:00:02.000000Z train: image train:1, GPUs: GPU-1, GPU-2\n" in early
    assert "epoch 0 step 50 loss" in early
    assert bench.log().startswith(early)
    assert len(bench.log()) > len(early)


@pytest.mark.parametrize(
    ("line_seconds", "lines"), [("5", 3), ("soon", 11), ("0", 11), ("nan", 11), ("inf", 1)]
)
def test_the_time_between_lines_can_be_set(bench: Bench, line_seconds: str, lines: int) -> None:
    bench.executor.start(changed(env={"SIM_LINE_SECONDS": line_seconds}))
    bench.at(12)  # it began to run after two seconds
    assert len(bench.log().splitlines()) == lines


def test_the_log_says_how_it_ended(bench: Bench) -> None:
    bench.executor.start(changed(env={"SIM_SECONDS": "5", "SIM_EXIT_CODE": "3"}))
    bench.at(100)
    assert bench.log().endswith("exiting with code 3\n")


def test_the_log_of_a_long_service_is_bounded(bench: Bench) -> None:
    bench.executor.start(changed(is_service=True))
    bench.at(30 * 86_400)
    assert 1024 * 1024 <= len(bench.records()) < 1024 * 1024 + 200


def test_a_restart_takes_up_attempts_with_load_and_the_same_log(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(20)
    before = bench.log()
    bench.loads.clear()
    bench.reopen()
    assert "a" in bench.loads
    assert bench.log() == before
    assert bench.at(63) is ObservedState.SUCCEEDED


def test_a_damaged_state_file_is_an_empty_start(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.folder / "attempts.json").write_text("{")
    assert bench.reopen().observe() == []
    assert "dropping its attempts" in caplog.text


def test_use_follows_what_was_asked_for(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.at(60)
    usage = bench.executor.usage("a")
    assert usage is not None
    assert 8 * 70 <= usage.cpu_percent <= 8 * 90
    assert 0 < usage.memory_bytes <= SPEC.memory_bytes
    rates = usage.container
    assert rates["received_bytes_per_second"] > rates["sent_bytes_per_second"] > 0


def test_images_of_attempts_stay_until_they_are_cleaned_up(bench: Bench) -> None:
    bench.executor.start(SPEC)
    bench.executor.start(changed(attempt_id="b", image="serve:2", env={"SIM_SECONDS": "9000"}))
    bench.executor.start(changed(attempt_id="c", image="missing:3"))
    bench.now += timedelta(minutes=5)
    storage = bench.reopen().storage()
    assert storage
    before = storage.report()
    used = {image.names[0]: (image.is_in_use, image.used_at_ns) for image in before.images}
    noon_ns, now_ns = (int(at.timestamp()) * 10**9 for at in (NOON, bench.now))
    assert used == {"train:1": (False, noon_ns), "serve:2": (True, now_ns)}
    sizes = sum(image.size_bytes for image in before.images)
    assert before.disk_free_bytes == 90 * GIB - sizes

    order = CleanupOrder(images=[image.image_id for image in before.images])
    assert storage.clean(order, keep=["train:1"]).images == 0
    done, after = storage.clean(order, keep=[]), storage.report()
    assert [image.names for image in after.images] == [["serve:2"]]
    assert done.freed_bytes == after.disk_free_bytes - before.disk_free_bytes > 0
