"""What Cromwell sends, on this machine with real processes and files. Written from its source and from recorded traffic."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import flowsched
from tests.cromwell import draft2
from tests.cromwell.sfs import judged
from tests.tes.recordings import RECORDINGS
from tests.tes.running import Running, need_container_paths, running

#: The backend's `config` in the file that we ship.
SHIPPED = draft2.config(Path(__file__).parents[2] / "deploy" / "cromwell" / "flowsched-tes.conf")
#: Cromwell's own script, as StandardAsyncExecutionActor writes it, with its streams, rc file and glob.
SCRIPT = """#!/bin/bash
cd '{cwd}'
tmpDir=$(mktemp -d "{cwd}/tmp.XXXXXX")
export TMPDIR="$tmpDir"
out="$tmpDir/out.$$" err="$tmpDir/err.$$"
mkfifo "$out" "$err"
trap 'rm "$out" "$err"' EXIT
touch '{cwd}/stdout' '{cwd}/stderr'
tee '{cwd}/stdout' < "$out" &
tee '{cwd}/stderr' < "$err" >&2 &
(
cd '{cwd}'
{command}
)  > "$out" 2> "$err"
echo $? > '{cwd}/rc.tmp'
(
cd '{cwd}'
{epilogue}
mkdir -p "{cwd}/glob-0123"
( ln -L *.txt "{cwd}/glob-0123" 2> /dev/null ) || ( ln *.txt "{cwd}/glob-0123" )
ls -1 "{cwd}/glob-0123" > "{cwd}/glob-0123.list"
)
mv '{cwd}/rc.tmp' '{cwd}/rc'
"""


class Call:
    """One call of a workflow: its folders on the host and in the container, and what Cromwell would send."""

    def __init__(
        self, host: Path, command: str, *, container: str = "/cromwell-executions", attempt: int = 1
    ) -> None:
        place = "WGS/1111-22/call-Sub/Sub/7f0d-77/call-Caller/shard-2"
        self.upstream = host / "WGS/1111-22/call-ToBam/execution/a.bam"
        self.upstream.parent.mkdir(parents=True, exist_ok=True)
        self.upstream.write_text("reads\n")
        self.host, self.container = host / place / "execution", f"{container}/{place}/execution"
        self.host.mkdir(parents=True, exist_ok=True)
        shared = (
            str(host) == container
        )  # then nothing is mapped: Cromwell leaves paths below its dockerRoot as they are
        self.bam = str(self.upstream) if shared else f"{container}/{place}/inputs{self.upstream}"
        (self.host / "script").write_text(
            SCRIPT.format(
                cwd=self.container, command=command.format(bam=self.bam), epilogue=SHIPPED["script-epilogue"]
            )
        )
        self.attempt, self.ram_gb = attempt, 6.5

    def output(self, name: str, path: str, kind: str = "FILE") -> dict[str, str]:
        return {
            "name": name, "description": f"Sub.Caller.{name}", "url": f"{self.host}/{path}",
            "path": f"{self.container}/{path}", "type": kind,
        }  # fmt: skip

    def body(self) -> dict[str, Any]:
        return {
            "name": "Sub.Caller",
            "description": f"7f0d-77:BackendJobDescriptorKey_CommandCallNode_Sub.Caller:2:{self.attempt}",
            "inputs": [
                {"name": "Sub.Caller.bam.0", "description": "Sub.Sub.Caller.bam.0", "url": str(self.upstream),
                 "path": self.bam, "type": "FILE"},
                {"name": "commandScript", "description": "Sub.Caller.commandScript", "url": f"{self.host}/script",
                 "path": f"{self.container}/script", "type": "FILE"},
            ],
            "outputs": [
                self.output("rc", "rc"), self.output("stdout", "stdout"), self.output("stderr", "stderr"),
                self.output("commandScript", "script"), self.output("Sub.Caller.output.0", "a.g.vcf"),
                self.output("Sub.Caller.output.1", "not written"), self.output("globDir.1", "glob-0123/", "DIRECTORY"),
                self.output("globList.1", "glob-0123.list"),
            ],
            "resources": {"cpu_cores": 2, "ram_gb": self.ram_gb, "disk_gb": 60.0, "preemptible": True,
                          "backend_parameters": {"internal_path_prefix": f"{self.host.parent}/tes_task"}},
            "executors": [{"image": "us.gcr.io/gatk@sha256:0", "command": ["/bin/bash", f"{self.container}/script"],
                           "stdout": f"{self.container}/stdout", "stderr": f"{self.container}/stderr"}],
            "tags": {"workflow_id": "7f0d-77", "root_workflow_id": "1111-22", "parent_workflow_id": None, "l": "x"},
        }  # fmt: skip

    def read(self, name: str) -> str:
        return (self.host / name).read_text()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Running]:
    need_container_paths(tmp_path)
    async with running(tmp_path / "root") as made:
        yield made


GOOD = "cat '{bam}' > a.g.vcf; echo one > 1.txt; echo two > 2.txt; echo said; echo told >&2"


async def test_a_call_runs_and_all_its_files_are_in_place(service: Running, tmp_path: Path) -> None:
    """COMPLETE is followed at once by reading rc, streams and outputs; what was not written is no error."""
    call = Call(tmp_path / "data", GOOD)
    ident = await service.create(call.body())
    task = await service.until(ident)
    assert (task["state"], call.read("rc")) == ("COMPLETE", "0\n")
    assert (call.read("stdout"), call.read("a.g.vcf")) == ("said\n", "reads\n")
    assert "told\n" in call.read("stderr")
    assert (call.read("glob-0123/1.txt"), call.read("glob-0123.list")) == ("one\n", "1.txt\n2.txt\n")
    (log,) = task["logs"]
    assert [step["exit_code"] for step in log["logs"]] == [0]
    assert log["logs"][0]["stdout"] == "said\n"
    assert {file["url"] for file in log["outputs"]} >= {f"{call.host}/rc", f"{call.host}/glob-0123/2.txt"}
    assert log["metadata"]["vm_price_per_hour_usd"] == "0"
    assert log["start_time"] <= log["end_time"]
    async with service.session.get(f"{service.url}/api/v1/workflows/{ident}/document") as answer:
        said = json.loads(await answer.read())["call"]
    assert said == {
        "run": "1111-22", "run_name": "WGS", "source": "cromwell", "node": "WGS.Sub.Caller", "shard": 2,
        "attempt": 1, "after": ["WGS.ToBam"], "task": "call-Sub/Sub/7f0d-77/call-Caller/shard-2",
    }  # fmt: skip


async def test_a_call_whose_root_is_the_container_s_needs_no_copies(service: Running, tmp_path: Path) -> None:
    """`root` == `dockerRoot`: every path is the same inside and outside."""
    call = Call(tmp_path / "data", GOOD, container=str(tmp_path / "data"))
    task = await service.until(await service.create(call.body()))
    assert (task["state"], call.read("rc"), call.read("glob-0123/2.txt")) == ("COMPLETE", "0\n", "two\n")


async def test_a_call_sees_its_inputs_and_not_what_lies_beside_them(service: Running, tmp_path: Path) -> None:
    """With the roots of the shipped configuration. A call that lists its inputs' folder then does so on any machine alike."""
    assert SHIPPED["root"] != SHIPPED["dockerRoot"]
    call = Call(tmp_path / "data", 'ls "$(dirname {bam})"', container=SHIPPED["dockerRoot"])
    call.upstream.with_name("neighbour.bai").write_text("index\n")
    task = await service.until(await service.create(call.body()))
    assert (task["state"], call.read("rc"), call.read("stdout")) == ("COMPLETE", "0\n", "a.bam\n")


GREEDY = "python3 -c 'x = b\"a\" * (300 << 20); import time; time.sleep(2)'"


@pytest.mark.parametrize("same_root", [False, True], ids=["roots as shipped", "one root"])
async def test_a_call_gets_more_memory_until_it_has_enough(
    service: Running, tmp_path: Path, same_root: bool
) -> None:
    """`memory_retry_multiplier: 2.0`: 100, 200 and 400 MB; Cromwell reads the two files that an attempt out of memory leaves."""
    container = str(tmp_path / "data") if same_root else str(SHIPPED["dockerRoot"])
    seen = []
    for attempt in (1, 2, 3):
        call = Call(tmp_path / "data", GREEDY, container=container, attempt=attempt)
        call.ram_gb = 0.1 * 2 ** (attempt - 1)
        task = await service.until(await service.create(call.body()))
        seen.append((task["state"], judged(call.host, done=task["state"] == "COMPLETE", factor=2.0)))
        for name in ("rc", "memory_retry_rc"):  # the next attempt has a folder of its own
            (call.host / name).unlink(missing_ok=True)
    more = ("EXECUTOR_ERROR", "more memory")
    assert seen == [more, more, ("COMPLETE", "done")]


async def test_a_process_that_was_killed_alone_asks_for_more_memory(service: Running, tmp_path: Path) -> None:
    """The script has lived on, so that the task is complete: the shipped epilogue writes what flowsched takes out."""
    call = Call(tmp_path / "data", "sh -c 'kill -9 $$'")
    task = await service.until(await service.create(call.body()))
    assert (task["state"], call.read("rc")) == ("COMPLETE", "79\n")
    assert judged(call.host, done=True, factor=2.0) == "more memory"
    assert judged(call.host, done=True) == "failed"


async def test_a_failure_that_is_none_of_memory_asks_for_none(service: Running, tmp_path: Path) -> None:
    """Neither a command's own code nor a timeout; a cancelled task leaves nothing, and its state says all."""
    codes = []
    for number, (command, more) in enumerate((("exit 3", {}), ("sleep 60", {"timeout": "1s"}))):
        call = Call(tmp_path / str(number), command)
        body = call.body()
        body["resources"]["backend_parameters"] |= more
        task = await service.until(await service.create(body))
        codes.append((task["state"], judged(call.host, done=task["state"] == "COMPLETE", factor=2.0)))
        assert not (call.host / "memory_retry_rc").exists()
    assert codes == [("COMPLETE", "failed"), ("EXECUTOR_ERROR", "failed")]


async def test_a_command_that_fails_is_a_task_that_is_complete(service: Running, tmp_path: Path) -> None:
    """The script ends well and writes rc: Cromwell decides by that."""
    call = Call(tmp_path / "data", "exit 3")
    task = await service.until(await service.create(call.body()))
    assert (task["state"], call.read("rc")) == ("COMPLETE", "3\n")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def on_both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """The service on each database."""
    need_container_paths(tmp_path)
    postgres = request.param == "postgresql"
    database = str(request.getfixturevalue("fresh_postgres")()) if postgres else None
    async with running(tmp_path / "root", database=database) as made:
        yield made


async def test_what_a_call_returned_is_told(on_both: Running, tmp_path: Path) -> None:
    """Its script ends with 0, so the task has succeeded: lists and views say what is in `rc`, by which Cromwell judges."""
    call = Call(tmp_path / "data", "exit 3")
    ident = await on_both.create(call.body())
    task = await on_both.until(ident)
    assert (task["state"], call.read("rc")) == ("COMPLETE", "3\n")
    assert [step["exit_code"] for step in task["logs"][0]["logs"]] == [0]
    async with flowsched.Client(on_both.url) as client:
        one, run = await client.get(ident), await client.get("1111-22")
        (listed,) = [view async for view in client.list()]
        stages = await client.stages(ident) + await client.stages("1111-22")
        (told,) = [each async for each in client.tasks(ident)]
    assert [view.state for view in (one, run, listed)] == ["SUCCEEDED", "ENGINE", "ENGINE"]
    assert [view.returned for view in (one, run, listed, *stages)] == [{"3": 1}] * 5
    assert (told.state, told.exit_code) == ("SUCCEEDED", 3)


@pytest.mark.parametrize(
    "command",
    ["echo 0 > '{cwd}/rc'", "mkdir '{cwd}/rc'", "echo no number > '{cwd}/rc'", "true"],
    ids=["zero", "a folder", "no number", "no file"],
)
async def test_what_a_call_returned_is_not_guessed(service: Running, tmp_path: Path, command: str) -> None:
    """0 is nothing to tell, and what is no number is not told."""
    call = Call(tmp_path / "data", "true")
    (call.host / "script").write_text(command.format(cwd=call.container) + "\n")
    ident = await service.create(call.body())
    await service.until(ident)
    async with flowsched.Client(service.url) as client:
        assert (await client.get(ident)).returned == {}


async def test_an_ignored_failure_of_the_last_executor_is_told(service: Running) -> None:
    """The task is COMPLETE, as TES wants it, and its log has the executor's own exit code."""
    ident = await service.create(
        {"executors": [{"image": "a", "command": ["sh", "-c", "exit 4"], "ignore_error": True}]}
    )
    task = await service.until(ident)
    assert (task["state"], task["logs"][0]["logs"][0]["exit_code"]) == ("COMPLETE", 4)
    async with flowsched.Client(service.url) as client:
        assert (await client.get(ident)).returned == {"4": 1}


async def test_an_abort_ends_canceled(service: Running, tmp_path: Path) -> None:
    """Cromwell writes 143 to rc, cancels, and polls until the end."""
    call = Call(tmp_path / "data", "sleep 600")
    ident = await service.create(call.body())
    await service.until(ident, "RUNNING")
    (call.host / "rc").write_text("143")
    await service.cancel(ident)
    task = await service.until(ident)
    assert (task["state"], call.read("rc")) == ("CANCELED", "143")


async def test_an_output_beyond_two_gib_has_no_size(service: Running, tmp_path: Path) -> None:
    """Cromwell reads sizes as Int32: a larger one would fail the call."""
    root = tmp_path / "data"
    call = Call(root, "truncate -s 3G a.g.vcf", container=str(root))
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 4 << 30:
        pytest.skip("less than 4 GiB are free here")
    task = await service.until(await service.create(call.body()))
    assert task["state"] == "COMPLETE", task
    (file,) = [each for each in task["logs"][0]["outputs"] if each["url"].endswith("a.g.vcf")]
    assert file == {"url": f"{call.host}/a.g.vcf", "path": f"{call.container}/a.g.vcf"}
    assert (call.host / "a.g.vcf").stat().st_size == 3 << 30


async def test_the_recorded_post_runs(service: Running, tmp_path: Path) -> None:
    """The body that was reconstructed from Cromwell's source, its paths below a folder of this test."""
    path = RECORDINGS / "cromwell-tes-post.RECONSTRUCTED.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}: the recordings are not beside this checkout")
    host = tmp_path / "data" / "cromwell-executions"
    call = "WGS/1111.../call-VariantCalling/VariantCalling/7f0d7c16-d434-4dd7-a7ba-c7e897701c9a/call-HaplotypeCallerGATK4/shard-2"
    text = json.dumps(json.loads(path.read_text())["body"])
    for said, meant in (
        ("/data/cromwell-executions", str(host)),
        ("<host execution dir>", f"{host}/{call}/execution"),
        ("<container execution dir>", f"/cromwell-executions/{call}/execution"),
        ("<container callDockerRoot>", f"/cromwell-executions/{call}"),
        ("<host call root>", f"{host}/{call}"),
        ("11111111-....", "1111..."),
        ("<md5>", "0123"),
    ):
        text = text.replace(said, meant)
    body = json.loads(text)
    for given in body["inputs"]:
        Path(given["url"]).parent.mkdir(parents=True, exist_ok=True)
        Path(given["url"]).write_text("reads\n")
    cwd = f"/cromwell-executions/{call}/execution"
    Path(body["inputs"][1]["url"]).write_text(
        SCRIPT.format(
            cwd=cwd,
            command=f"cat '{body['inputs'][0]['path']}' > a.g.vcf.gz; echo 1 > 1.txt",
            epilogue="sync",
        )
    )
    task = await service.until(await service.create(body))
    assert task["state"] == "COMPLETE", task
    execution = host / call / "execution"
    assert (execution / "rc").read_text() == "0\n", task
    assert (execution / "a.g.vcf.gz").read_text() == "reads\n"
    assert (execution / "glob-0123" / "1.txt").read_text() == "1\n"
    assert task["resources"]["cpu_cores"] == 2
    assert "parent_workflow_id" not in task["tags"]


@pytest.mark.parametrize(
    ("changes", "state", "exit_codes", "words"),
    [
        ({"executors": [{"image": "a", "command": ["sh", "-c", "echo out; echo err >&2; exit 3"]}]},
         "EXECUTOR_ERROR", [3], ()),
        ({"executors": [{"image": "a", "command": ["sh", "-c", "kill -9 $$"]}]}, "EXECUTOR_ERROR", [137], ()),
        ({"executors": [{"image": "a", "command": ["no such program"]}]}, "EXECUTOR_ERROR", [127], ("no such program",)),
        ({"resources": {"ram_gb": 0.05},
          "executors": [{"image": "a", "command": ["python3", "-c", "x = bytearray(400 << 20); import time; time.sleep(60)"]}]},
         "EXECUTOR_ERROR", [137], ("OOMKilled",)),
        ({"resources": {"backend_parameters": {"timeout": "1s"}},
          "executors": [{"image": "a", "command": ["sleep", "60"]}]}, "EXECUTOR_ERROR", [143], ("Timeout",)),
        ({"inputs": [{"path": "/in/x", "url": "/nowhere/x"}]}, "SYSTEM_ERROR", [], ("/nowhere/x",)),
        ({"outputs": [{"path": "/out/x", "url": f"{__file__}/x"}],
          "executors": [{"image": "a", "command": ["sh", "-c", "echo x > /out/x"]}]}, "SYSTEM_ERROR", [0], (__file__,)),
    ],
    ids=["exit code", "killed", "no program", "out of memory", "timeout", "no input", "no output"],
)  # fmt: skip
async def test_how_tasks_fail(
    service: Running, changes: dict[str, Any], state: str, exit_codes: list[int], words: tuple[str, ...]
) -> None:
    """An executor's failure is told by its exit code, the system's by its words."""
    body = {"executors": [{"image": "a", "command": ["true"]}], **changes}
    task = await service.until(await service.create(body))
    log = task["logs"][-1]
    told = json.dumps(log.get("system_logs", []))
    assert (task["state"], [step["exit_code"] for step in log["logs"]]) == (state, exit_codes), task
    assert all(word in told for word in words), told
