"""Outputs over HTTP: whole, under their own names, or a problem that says why not."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.test_utils import TestClient
from fake_service import FakeService

from flowsched.api.handlers.streams import disposition

CALLS = "/api/v1/workflows/wf1/tasks/call/0/outputs/vcf"


async def test_an_output_comes_whole(api: TestClient, service: FakeService) -> None:
    """With its length and its name; nothing stays open."""
    service.add()
    service.write("vcf", "calls.vcf", b"x" * 200_000)
    answer = await api.get(CALLS)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == "200000"
    assert "Transfer-Encoding" not in answer.headers
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="calls.vcf"')
    assert await answer.read() == b"x" * 200_000
    assert service.closed == 1


async def test_an_empty_output(api: TestClient, service: FakeService) -> None:
    """Nothing, and a length of 0."""
    service.add()
    service.write("vcf", "calls.vcf", b"")
    answer = await api.get(CALLS)
    assert (answer.status, await answer.read(), answer.headers["Content-Length"]) == (200, b"", "0")


async def test_what_was_never_written_is_a_404(api: TestClient, service: FakeService) -> None:
    """What was written and removed since is a 409, with the reason."""
    service.add()
    assert (await api.get(CALLS)).status == 404
    service.write("vcf", "calls.vcf", None)
    answer = await api.get(CALLS)
    assert answer.status == 409
    assert (await answer.json())["detail"] == "no node has 'vcf' any more"
    assert (await api.get("/api/v1/workflows/wf1/tasks/call/x/outputs/vcf")).status == 400


async def test_a_cut_is_no_end(api: TestClient, service: FakeService) -> None:
    """What breaks off half-way never looks complete."""
    service.add()
    service.write("vcf", "calls.vcf", b"x" * 100_000, 200_000)
    answer = await api.get(CALLS)
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()


@pytest.mark.parametrize(
    ("name", "plain", "whole"),
    [
        ("calls.vcf", "calls.vcf", "calls.vcf"),
        ("../../etc/passwd", "passwd", "passwd"),
        ("a\\..\\b", "a_.._b", "a%5C..%5Cb"),
        ("x/-rf", "-rf", "-rf"),
        ("b\udcff.bam", "b_.bam", "b%FF.bam"),
        (".bashrc", "bashrc", "bashrc"),
        ('x"; evil="\r\nSet-Cookie: a', "x___evil____Set-Cookie__a", "x%22%3B%20evil%3D%22%0D%0ASet-Cookie%3A%20a"),
        ("größe.txt", "gr__e.txt", "gr%C3%B6%C3%9Fe.txt"),
        ("..", "output", "output"),
    ],
)  # fmt: skip
def test_names_are_harmless(name: str, plain: str, whole: str) -> None:
    """No path, no dot file, nothing that could begin another header."""
    assert disposition(name) == f"attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}"
