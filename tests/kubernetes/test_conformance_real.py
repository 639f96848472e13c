"""The real API server behaves as we say: what `conformance` expects was not made up."""

from __future__ import annotations

import pytest

from tests.kubernetes.conformance import Conformance


@pytest.mark.kubernetes
class TestReal(Conformance):
    """All of it."""
