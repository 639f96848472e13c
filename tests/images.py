"""The container images of the tests, which `make images` builds (tests/tools/install_images.sh).

A test that needs one calls `image("samtools")`. Where it is missing the test is skipped with the reason, or fails where
FLOWSCHED_REQUIRE_IMAGES=1 (CI sets it).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import pytest

FLOWSCHED: Final = "ghcr.io/flowsched/flowsched:0.1.0"


@dataclass(frozen=True, slots=True)
class Image:
    """An image: the name that a task gives, and the file (`podman load`, `ctr images import`) that brings it."""

    name: str
    archive: Path


def images_folder() -> Path:
    """Where `make images` puts what it builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("FLOWSCHED_TEST_IMAGES") or Path(cache) / "flowsched" / "images")


def unavailable(why: str) -> NoReturn:
    """End this test: a skip on a laptop, a failure in CI."""
    if os.environ.get("FLOWSCHED_REQUIRE_IMAGES") == "1":
        pytest.fail(f"FLOWSCHED_REQUIRE_IMAGES=1, but: {why}", pytrace=False)
    pytest.skip(why)


def image(name: str) -> Image:
    """One of `debian`, `pause`, `samtools`, `numpy`, `flowsched`; the test ends here where it is not built."""
    archive = images_folder() / f"{name}.tar"
    if not archive.with_suffix(".made").is_file():
        unavailable(f"no image {name} in {images_folder()}: run `make images`")
    return Image(FLOWSCHED if name == "flowsched" else f"localhost/flowsched-test/{name}:1", archive)
