"""Where an answer says that files were delivered to."""

from __future__ import annotations

import json

from flowsched.workflow.formats.tes.answers import joined


def delivered(*urls: str, outputs: list[str]) -> list[str]:
    """The urls of delivered files in an answer to a task with these outputs."""
    body = json.dumps({"outputs": [{"url": url, "path": "/o"} for url in outputs]}, separators=(",", ":"))
    files = [{"url": url, "path": "/o", "size_bytes": "1"} for url in urls]
    answer = json.loads(joined("w1", "COMPLETE", 0, body.encode(), [{"logs": [], "outputs": files}]))
    return [file["url"] for file in answer["logs"][0]["outputs"]]


def test_a_delivered_file_has_the_url_that_was_asked_for() -> None:
    """In the client's form: `file://`, with a host or without, or a bare path as Cromwell's."""
    assert delivered("/lab/a.txt", outputs=["file:///lab/a.txt"]) == ["file:///lab/a.txt"]
    assert delivered("/lab/a.txt", outputs=["file://localhost/lab/a.txt"]) == ["file://localhost/lab/a.txt"]
    assert delivered("/lab/a.txt", outputs=["/lab/a.txt"]) == ["/lab/a.txt"]
    assert delivered("s3://lab/a.txt", outputs=["s3://lab/a.txt", "file:///lab"]) == ["s3://lab/a.txt"]


def test_files_of_a_folder_are_below_its_url() -> None:
    """With or without a slash at its end; a folder with a longer name is another one."""
    assert delivered("/lab/d/x/1", outputs=["file:///lab/d/"]) == ["file:///lab/d/x/1"]
    assert delivered("/lab/d/x/1", outputs=["file:///lab/d"]) == ["file:///lab/d/x/1"]
    assert delivered("/lab/dx", outputs=["file:///lab/d"]) == ["/lab/dx"]
