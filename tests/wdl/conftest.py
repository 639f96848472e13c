"""One service for the tests of a module, and miniwdl set up for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wdl.engine import Engine, Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("service") / "root")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def engine(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(service, tmp_path_factory.mktemp("engine"))
    try:
        yield made
    finally:
        made.close()
