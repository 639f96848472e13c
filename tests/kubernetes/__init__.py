"""Kubernetes: what is held to a real API server, and to a stand-in that is held to the real one."""

import pytest

for helper in ("conformance", "conformance_native", "conformance_watches", "following", "talk"):
    pytest.register_assert_rewrite(f"tests.kubernetes.{helper}")
