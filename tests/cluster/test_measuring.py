"""What the disk of a folder carries, read from files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowsched.cluster.node import meter as meter_module
from flowsched.cluster.node.meter import DiskMeter, parse_diskstats
from flowsched.executor.nodes import Load, LoadMeasured

DISKSTATS = """ 259       0 nvme0n1 10 0 1000 5 20 0 3000 5 0 5 5
 259       1 nvme0n1p1 1 0 10 5 2 0 30 5 0 5 5
   8       0 sda 10 0 200 5 20 0 300 5 0 5 5
   8       2 sda2 1 0 7 5 2 0 8 5 0 5 5
 253       0 dm-0 1 0 4 5 2 0 6 5 0 5 5
   9       1 md1 1 0 1 5 2 0 2 5 0 5 5
"""


def tell(proc: Path, device: int, sectors: int) -> None:
    """Half of the sectors were read, half written, on the device; and many on another."""
    half = sectors // 2
    lines = [
        f"   {os.major(device) + 1} {os.minor(device)} other 1 0 999999 9 1 0 999999 9 0 9 9",
        f"   {os.major(device)} {os.minor(device)} disk 1 0 {half} 9 1 0 {sectors - half} 9 0 9 9",
    ]
    (proc / "diskstats").write_text("\n".join(lines) + "\n")


def test_what_tasks_move_is_told_apart_from_what_others_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 5 s 51,200,000 bytes, of which a task on b (and what it started) moved 10,000,000; the others' are divided evenly."""
    device = os.stat(tmp_path).st_dev
    meter = DiskMeter(tmp_path, ("a", "b"), proc=tmp_path)
    tell(tmp_path, device, 1_000)
    moved = {7: 1_000_000, 8: 2_000_000}
    monkeypatch.setattr(meter_module, "descendants", lambda of: [*of, 8])
    monkeypatch.setattr(
        meter_module, "io_counts", lambda pid: {"read_bytes": moved[pid] - 5, "write_bytes": 5}
    )
    assert meter.measure([("task", "b", 7)], 5.0) is None  # nothing to compare with
    tell(tmp_path, device, 101_000)
    moved[8] = 12_000_000
    expected = LoadMeasured((Load("a", 4_120_000, 0), Load("b", 6_120_000, 2_000_000)))
    assert meter.measure([("task", "b", 7)], 5.0) == expected


def test_where_the_kernel_counts_no_disk_nothing_is_measured(tmp_path: Path) -> None:
    """No file, or a folder on a file system without a device of its own."""
    meter = DiskMeter(tmp_path, ("a",), proc=tmp_path)
    assert meter.measure([], 5.0) is None
    (tmp_path / "diskstats").write_text("   999 999 disk 1 0 1 9 1 0 1 9 0 9 9\n")
    assert meter.measure([], 5.0) is None
    assert meter.measure([], 5.0) is None


@pytest.mark.parametrize(
    ("major", "minor", "numbers", "carried"),
    [
        (259, 1, ("259:1", "259:0"), 2_048_000),
        (259, 0, ("259:0",), 2_048_000),
        (8, 2, ("8:2", "8:0"), 256_000),
        (253, 0, ("253:0",), 5_120),
        (9, 1, ("9:1",), 1_536),
    ],
)
def test_a_partition_is_measured_with_its_disk(
    major: int, minor: int, numbers: tuple[str, ...], carried: int
) -> None:
    """Partitions share what their disk carries; a volume of several disks (dm, md) is a disk of its own."""
    disk = parse_diskstats(DISKSTATS, major, minor)
    assert disk is not None
    assert (disk.numbers, disk.carried) == (numbers, carried)


def test_a_device_that_the_kernel_does_not_count() -> None:
    """Major number 0: an overlay, or a file system of several devices."""
    assert parse_diskstats(DISKSTATS, 0, 42) is None
