"""An object store for tests: moto's S3 server, in a thread of the test's process."""

from __future__ import annotations

import logging
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest


class Store:
    """A server with an empty bucket `lab`, from `start` to `stop`. The servers of one process share their buckets.

    Attributes:
        variables: Of the environment, by which users reach it.
        client: Of boto3.
        read: The bytes that were downloaded of each object, by its path `/bucket/key`.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self.read: Counter[str] = Counter()

    def start(self) -> None:
        """Start it, and forget the buckets of those before."""
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        self._server: Any = ThreadedMotoServer(ip_address=self._address, port=0, verbose=False)
        self._server.start()
        self._server._server.app = self._counted(self._server._server.app)
        host, port = self._server.get_host_and_port()
        url = f"http://{host}:{port}"
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/moto-api/reset", method="POST"), timeout=30
        ).close()
        self.variables: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        }
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket="lab")

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def _counted(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def serve(environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
            body = list(app(environ, start_response))
            if environ["REQUEST_METHOD"] == "GET":
                self.read[environ["PATH_INFO"]] += sum(map(len, body))
            return body

        return serve


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with an empty bucket `lab`, reached as users reach theirs: by the AWS variables of the environment.

    Yields:
        A client of boto3.
    """
    import s3fs

    store = Store()
    store.start()
    for name, value in store.variables.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # of an earlier test's server
    yield store.client
    store.stop()
