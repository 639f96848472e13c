"""Fixtures of the API server, for the calls that run as pods."""

from __future__ import annotations

from tests.kubernetes.conftest import api, client, control_plane, namespace

__all__ = ["api", "client", "control_plane", "namespace"]
