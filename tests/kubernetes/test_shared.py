"""The volumes that every task sees, as they are set."""

from __future__ import annotations

import pytest

from flowsched.cluster.kubernetes.settings import from_environment, shared_volumes
from flowsched.cluster.node.container_paths import SharedVolume
from flowsched.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "volumes"),
    [
        ("", ()),
        ("lab:/data", (SharedVolume("lab", "/data"),)),
        (
            " lab:/data/ , hg38.references:/ref/hg38:ro,",
            (SharedVolume("lab", "/data"), SharedVolume("hg38.references", "/ref/hg38", True)),
        ),
        ("lab:/srv/lab:rw", (SharedVolume("lab", "/srv/lab"),)),
    ],
)
def test_claims_and_their_paths(text: str, volumes: tuple[SharedVolume, ...]) -> None:
    """Each with a path, and whether it may be written to."""
    assert shared_volumes(text) == volumes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lab", "claim:/path"),
        ("lab:data", "not 'lab:data'"),
        ("Lab:/data", "not 'Lab:/data'"),
        ("lab:/data:rx", "not 'lab:/data:rx'"),
        ("a:/data,b:/data/", "two volumes at /data"),
        ("lab:/", "/ is a folder of the system"),
        ("lab:/usr", "/usr is a folder of the system"),
        ("lab:/proc/x", "/proc/x is a folder of the system"),
        ("lab:/flowsched", "/flowsched is a folder of the system"),
    ],
)
def test_what_cannot_be_mounted(text: str, words: str) -> None:
    """Said when the service starts, with what was found."""
    with pytest.raises(ConfigurationError, match="FLOWSCHED_SHARED") as told:
        shared_volumes(text)
    assert words in str(told.value)


def test_variables_of_a_deployment() -> None:
    """Both are texts; nothing is set by default."""
    told = from_environment({"FLOWSCHED_SHARED": "lab:/data", "FLOWSCHED_STEPS_SECRET": "objectstore"})
    assert (told.shared, told.steps_secret) == ("lab:/data", "objectstore")
    plain = from_environment({})
    assert (plain.shared, plain.steps_secret) == ("", "")
