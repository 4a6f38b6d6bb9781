"""Metrics that jobs print, and scalars of event files."""

import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter
from tensorboardX.proto import summary_pb2 as summary
from tensorboardX.proto import tensor_pb2

import vedette
from collector.implausible import ImplausibleFilter
from collector.results.events import masked_crc, read_scalars
from collector.results.metrics import BURST, MAX_NAMES, MetricSource, PrintedMetrics
from protocol.logs import Stream, record
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

AT = b"2026-03-01T12:00:00.5Z"
AT_NS = 1_772_366_400_500_000_000


def printed(*lines: str, stream: Stream = Stream.STDOUT) -> list[Point]:
    points: list[Point] = []
    metrics = PrintedMetrics(points.extend)
    records = b"".join(record(AT, stream, f"{line}\n".encode()) for line in lines)
    metrics.read("attempt-1", "job-1", records)
    return points


def values(points: list[Point]) -> dict[str, float]:
    return {str(point.tags["name"]): float(point.fields["value"]) for point in points}


def test_what_vedette_log_prints_becomes_points_with_the_time_of_the_line() -> None:
    out = io.StringIO()
    vedette.log({"eval/loss": 0.4}, step=10, loss=0.3, file=out)
    points = printed(out.getvalue().strip())
    assert values(points) == {"eval/loss": 0.4, "loss": 0.3}
    assert {point.time_ns for point in points} == {AT_NS}
    assert points[0].tags == {"job": "job-1", "attempt": "attempt-1", "name": "eval/loss"}
    assert points[0].fields["step"] == 10
    assert encode(ImplausibleFilter().plausible(points))


def test_nan_and_infinity_are_gaps_and_the_others_stay() -> None:
    out = io.StringIO()
    vedette.log(step=1, loss=float("nan"), accuracy=0.5, file=out)
    line = json.dumps({"vedette": {"a": float("nan"), "b": float("-inf"), "c": 2}})
    assert values(printed(out.getvalue().strip())) == {"accuracy": 0.5}
    assert values(printed(line)) == {"c": 2.0}


@pytest.mark.parametrize(
    "line",
    [
        'x {"vedette": {"loss": 1}}',
        '{"vedette": {"loss": 1}',
        '{"vedette": [1]}',
        '{"vedette": {"loss": "low", "is_best": true, "step": 3}}',
        '{"vedette": {"\\u0007": 1, "": 2}}',
        '{"vedette": {"loss": 1e999}}',
        '{"vedette": {"' + "n" * 101 + '": 1}}',
        '{"other": {"loss": 1}}',
        '{"vedette": {"loss": ' + "9" * 17_000 + "}}",
    ],
)
def test_other_lines_are_no_metrics(line: str) -> None:
    assert printed(line) == []


def test_names_and_rate_of_a_job_are_limited() -> None:
    names = printed(*(f'{{"vedette": {{"m{number}": 1}}}}' for number in range(MAX_NAMES + 5)))
    assert len(names) == MAX_NAMES
    source = MetricSource("job-1", "attempt-1", monotonic=lambda: 0.0)
    made = [source.point("loss", 1.0, number, number) for number in range(int(BURST) + 5)]
    assert len([point for point in made if point is not None]) == BURST


def scalars_of(path: Path, offset: int = 0) -> tuple[list[tuple[str, float, int]], int]:
    with path.open("rb") as content:
        scalars, end = read_scalars(content.fileno(), offset, path.stat().st_size)
    return [(scalar.tag, scalar.value, scalar.step) for scalar in scalars], end


def tensors() -> list[Any]:
    """Return tensors of one number, in several forms, and one that is no scalar."""
    made: list[Any] = [
        tensor_pb2.TensorProto(dtype="DT_FLOAT", float_val=[0.125]),
        tensor_pb2.TensorProto(dtype="DT_DOUBLE", tensor_content=struct.pack("<d", 0.0625)),
        tensor_pb2.TensorProto(dtype="DT_INT64", int64_val=[-7]),
        tensor_pb2.TensorProto(dtype="DT_FLOAT", float_val=[1.0, 2.0]),
        tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[b"text"]),
    ]
    return made


def event_file(folder: Path) -> Path:
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("train/loss", 0.5, 1)
        writer.add_histogram("weights", [0.0, 1.0, 2.0] * 10, 1)
        # As TensorFlow 2 and PyTorch's `new_style` write scalars.
        for step, tensor in enumerate(tensors(), start=2):
            entry = summary.Summary.Value(tag="train/loss", tensor=tensor)
            writer.file_writer.add_summary(summary.Summary(value=[entry]), step)
        writer.add_scalar("rate", 3.0, -1)
    return next(folder.glob("*tfevents*"))


def test_scalars_of_a_real_event_file_are_read_in_any_steps(tmp_path: Path) -> None:
    path = event_file(tmp_path)
    losses = [("train/loss", value, step) for step, value in enumerate((0.5, 0.125, 0.0625, -7), 1)]
    expected = [*losses, ("rate", 3.0, -1)]
    assert scalars_of(path) == (expected, path.stat().st_size)
    # As it grows byte by byte, each is read once.
    whole, grown, read, offset = path.read_bytes(), tmp_path / "grown", [], 0
    for size in range(len(whole) + 1):
        grown.write_bytes(whole[:size])
        scalars, offset = scalars_of(grown, offset)
        read += scalars
    assert read == expected


def test_damaged_event_files_are_given_up(tmp_path: Path) -> None:
    path = event_file(tmp_path)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"train/loss")
    whole[at] ^= 1
    path.write_bytes(whole)
    assert scalars_of(path) == ([], -1)
    path.write_bytes(os.urandom(1000))
    assert scalars_of(path) == ([], -1)


def test_a_record_of_any_length_and_content_is_bounded(tmp_path: Path) -> None:
    def framed(data: bytes, length: int | None = None) -> bytes:
        head = struct.pack("<Q", len(data) if length is None else length)
        return (
            head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))
        )

    path = tmp_path / "events"
    path.write_bytes(framed(b"", 2**63))
    assert scalars_of(path) == ([], 0)
    for hostile in (b"\xff" * 30, b"\x0a\xff\xff\xff\xff\x0f", b"\x29", b"\x2a\x02\x0a\x00"):
        path.write_bytes(framed(hostile))
        assert scalars_of(path)[0] == []
