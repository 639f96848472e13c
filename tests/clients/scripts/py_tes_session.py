"""A session of py-tes, run by the Python of its own environment: `py_tes_session.py URL FOLDER`; what it saw, as JSON.

Nothing of flowsched is imported here. Ids and times differ from run to run: they are shown as names.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import requests
import tes

NODE = re.compile(r"^node-[01]$")
URL, FOLDER = sys.argv[1:]
CLIENT = tes.HTTPClient(URL, timeout=120)
TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?([+]00:00|Z)?$")


def task(name: str, command: str, **more: Any) -> tes.Task:
    """A task as in py-tes' own examples: a folder of its own, files in and out by URL."""
    executor = tes.Executor(
        image="alpine",
        command=["sh", "-c", command],
        workdir="/data",
        stdout="/data/log.txt",
        env={"WHO": "py-tes"},
    )
    return tes.Task(
        name=name,
        description=f"step {name}",
        executors=[executor],
        resources=tes.Resources(cpu_cores=1, ram_gb=0.5, disk_gb=1.0, preemptible=False),
        tags={"workflow": "wf-1", "step": name},
        **more,
    )


USED = ("cpu_time_ms", "disk_used_bytes", "peak_memory_bytes")


def file_in(name: str, path: str) -> list[tes.Input]:
    return [tes.Input(url=f"file://{FOLDER}/{name}", path=path, type="FILE")]


def file_out(name: str, path: str) -> list[tes.Output]:
    return [tes.Output(url=f"file://{FOLDER}/{name}", path=path, type="FILE")]


def plain(value: Any, names: dict[str, str]) -> Any:
    """Ids become names, times become `<time>`, the folder `<folder>`, what a task used `<used>`."""
    if isinstance(value, dict):
        return {
            key: "<used>" if key in USED else plain(inner, names)
            for key, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list | tuple):
        return [plain(inner, names) for inner in value]
    if isinstance(value, bool | int | float):
        return value
    text = NODE.sub("<node>", str(value))
    return "<time>" if TIME.match(text) else names.get(text, text.replace(FOLDER, "<folder>"))


def refusal(ident: str) -> str:
    try:
        CLIENT.get_task(ident, "MINIMAL")
    except requests.exceptions.HTTPError as error:
        return f"HTTPError {error.response.status_code}"
    return "no error"


def main() -> None:
    names: dict[str, str] = {}
    seen: dict[str, Any] = {}
    info = CLIENT.get_service_info().as_dict()
    seen["service-info"] = sorted(info)

    # A chain of three: each reads what the one before wrote.
    chain = {
        "s1": task("s1", "echo one > /data/o1.txt; echo said", outputs=file_out("o1.txt", "/data/o1.txt")),
        "s2": task(
            "s2", "cat /data/i.txt > /data/o2.txt; echo two by $WHO >> /data/o2.txt",
            inputs=file_in("o1.txt", "/data/i.txt"), outputs=file_out("o2.txt", "/data/o2.txt"),
        ),
        "s3": task(
            "s3", "wc -l < /data/i.txt > /data/o3.txt",
            inputs=[*file_in("o2.txt", "/data/i.txt"), tes.Input(path="/data/note", content="a note", type="FILE")],
            outputs=file_out("o3.txt", "/data/o3.txt"),
        ),
    }  # fmt: skip
    for name, asked in chain.items():
        ident = CLIENT.create_task(asked)
        names[ident] = f"<{name}>"
        seen[f"wait {name}"] = CLIENT.wait(ident, timeout=300).as_dict()
    last = list(names)[-1]
    for view in ("MINIMAL", "BASIC", "FULL"):
        seen[view] = CLIENT.get_task(last, view).as_dict()

    # One whose second program fails.
    failing = task("failing", "exit 0")
    failing.executors = [
        tes.Executor(image="a", command=["sh", "-c", "echo fine"]),
        tes.Executor(image="a", command=["sh", "-c", "echo no such sample >&2; exit 7"]),
        tes.Executor(image="a", command=["never"]),
    ]
    ident = CLIENT.create_task(failing)
    names[ident] = "<failing>"
    seen["wait failing"] = CLIENT.wait(ident, timeout=300).as_dict()
    (log,) = CLIENT.get_task(ident, "FULL").as_dict()["logs"]
    seen["logs of failing"] = [
        {key: each.get(key) for key in ("exit_code", "stdout", "stderr")} for each in log["logs"]
    ]

    # One that is cancelled while it runs.
    ident = CLIENT.create_task(
        tes.Task(name="sleep", executors=[tes.Executor(image="a", command=["sleep", "300"])])
    )
    names[ident] = "<sleep>"
    while CLIENT.get_task(ident, "MINIMAL").state != "RUNNING":
        pass
    CLIENT.cancel_task(ident)
    seen["wait sleep"] = CLIENT.wait(ident, timeout=300).as_dict()
    CLIENT.cancel_task(ident)  # once more is no error

    # Lists: pages of two, newest first.
    pages, token = [], None
    while True:
        page = CLIENT.list_tasks(view="MINIMAL", page_size=2, page_token=token)
        pages.append([each.as_dict() for each in page.tasks])
        token = page.next_page_token
        if not token:
            break
    seen["pages"] = pages
    seen["list in full"] = sorted(each.name for each in CLIENT.list_tasks(view="FULL").tasks)
    seen["unknown"] = refusal("nope")
    print(json.dumps(plain(seen, names), indent=2, sort_keys=True))


main()
