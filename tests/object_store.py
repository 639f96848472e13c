"""An object store for tests: moto's S3 server, in a thread of the test's process."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with an empty bucket `lab`, reached as users reach theirs: by the AWS variables of the environment.

    Yields:
        A client of boto3.
    """
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    # The servers of one process share their buckets.
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"), timeout=30).close()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="lab")
    s3fs.S3FileSystem.clear_instance_cache()  # of an earlier test's server
    yield client
    server.stop()
