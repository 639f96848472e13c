"""Which tests one process runs together, since they share what is costly to make."""

from __future__ import annotations

from typing import Final

#: Folders that are one group. A cluster of real nodes for each worker is more than a machine has; for tests of containers
#: each worker would start a Docker daemon and load its images.
FOLDERS: Final = ("tests/kubernetes/nodes/", "tests/containers/")


def group_of(node: str) -> str:
    """The file of a test, or the folder whose files share one cluster or one engine."""
    file = node.split("::", 1)[0]
    return next((folder for folder in FOLDERS if file.startswith(folder)), file)
