"""The real API server behaves as we say: what `conformance` expects was not made up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.conformance import Conformance
from tests.kubernetes.conformance_native import NativeConformance
from tests.kubernetes.conftest import running
from tests.kubernetes.hollow.controlplane import ControlPlane


@pytest.fixture(scope="module")
def native_control_plane() -> Iterator[ControlPlane]:
    """A control plane whose feature gates for native PodGroups are on."""
    plane = running(ControlPlane(native_podgroups=True))
    yield plane
    plane.stop()


@pytest.mark.kubernetes
class TestReal(Conformance):
    """As it is served by default."""


@pytest.mark.kubernetes
class TestRealWithNativePodGroups(NativeConformance):
    """With the feature gates on."""

    @pytest.fixture
    def api(self, native_control_plane: ControlPlane) -> Connection:
        """Its administrator."""
        return native_control_plane.connection()
