"""An API server of this process: the behaviours of the real one (KUBE.md, held to it by `conformance`), and misbehaviours.

async with FakeApi() as api, Client(api.connection) as client:
    api.faults.refuse(too_many(when("create", "pods")), times=2)
"""

from tests.kubernetes.fake.faults import (
    Faults,
    Shuffled,
    Spoiled,
    answering,
    database_full,
    duplicated,
    over_quota,
    too_many,
    webhook_denies,
    webhook_fails,
    when,
)
from tests.kubernetes.fake.handling import Api
from tests.kubernetes.fake.replies import Reply, status_body
from tests.kubernetes.fake.requests import Request
from tests.kubernetes.fake.server import FakeApi

__all__ = [
    "Api",
    "FakeApi",
    "Faults",
    "Reply",
    "Request",
    "Shuffled",
    "Spoiled",
    "answering",
    "database_full",
    "duplicated",
    "over_quota",
    "status_body",
    "too_many",
    "webhook_denies",
    "webhook_fails",
    "when",
]
