"""The head of a run in another engine's language: a document that starts the engine."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowsched.cluster.node.environment import expand
from flowsched.errors import InvalidRequest
from flowsched.workflow.document.decode import check_workflow, decode_workflow
from flowsched.workflow.formats.heads import ENGINES, Engine, Start, head, language_of, run_name

BY_NAME = {engine.program: engine for engine in ENGINES}


@pytest.mark.parametrize(
    ("path", "first", "language"),
    [
        ("a/hello.wdl", b"", "WDL"),
        ("pipeline", b"# hello\nversion 1.1\nworkflow w {", "WDL"),
        ("main.nf", b"", "NFL"),
        ("workflow/Snakefile", b"", "SMK"),
        ("rules.smk", b"", "SMK"),
        ("a.CWL", b"", "CWL"),
        ("a.json", b'{"name": "version 1.1"}', ""),
        ("-", b"", ""),
    ],
)
def test_the_name_of_a_file_says_its_language(path: str, first: bytes, language: str) -> None:
    """WDL is known by its text, too."""
    assert language_of(path, first) == language


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/w/hello.wdl", "hello"),
        ("/w/rna seq/main.nf", "rna-seq"),
        ("/w/calls/workflow/Snakefile", "calls"),
        ("/Snakefile", "Snakefile"),
        ("/w/ä.wdl", "run"),
    ],
)
def test_a_run_has_the_name_of_its_file_or_its_project(path: str, name: str) -> None:
    """Many projects have a main.nf."""
    assert run_name(path) == name


def start(folder: Path, program: str, *arguments: str) -> Start:
    url = "http://127.0.0.1:1"
    return Start(program, f"{folder}/it's a.wdl", f"{folder}/of $(it)", arguments, url, "a-1", "/conf")


def made(engine: Engine, at: Start, *, again: bool = False, **env: str) -> dict[str, Any]:
    return head(engine, at, name="a", env=env, labels={"team": "x"}, token=True, again=again)


def ran(
    engine: Engine, at: Start, folder: Path, attempt: int = 0, stderr: int | None = None, **more: str
) -> tuple[subprocess.Popen[str], str]:
    """The head's process, which has ended, and what it printed. `more`: its variables."""
    spec = decode_workflow(msgspec.json.encode(made(engine, at)))
    command = [expand(word, {}) for word in spec.stages[0].roles[0].command]
    (folder / "work").mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "TOKEN": "0123", "FLOWSCHED_ATTEMPT": str(attempt), **more}
    process = subprocess.Popen(
        command, cwd=folder / "work", stdout=subprocess.PIPE, stderr=stderr, text=True, env=env
    )
    return process, process.communicate(timeout=30)[0]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.program)
def test_an_engine_gets_its_arguments_its_endpoint_and_its_token(engine: Engine, tmp_path: Path) -> None:
    """Whatever characters the paths have. The shell becomes the engine, so that a cancel reaches it."""
    program = tmp_path / "it's bin" / engine.program
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$0" "$PWD" "$$" "$@"; env; for file; do cat "$file"; done 2>/dev/null; exit 0\n'
    )
    program.chmod(0o755)
    (tmp_path / "of $(it)").mkdir()
    at = start(tmp_path, str(program), "--name=$(X)", "two words")
    process, said = ran(engine, at, tmp_path)
    lines = said.splitlines()
    assert lines[:3] == [str(program), f"{tmp_path}/of $(it)", str(process.pid)]
    assert "--name=$(X)" in lines
    assert "two words" in lines
    assert at.source in lines
    assert "0123" in said
    named = "MINIWDL__FLOWSCHED__RUN=a-1" if engine.program == "miniwdl" else "127.0.0.1:1/runs/a-1"
    assert named in said


def test_a_head_asks_for_no_room() -> None:
    """A task that needs its whole node finds it; the head is one of its run, and no second one is started where it is lost."""
    document = made(
        BY_NAME["miniwdl"], start(Path("/w"), "/bin/miniwdl"), PATH="/bin", AWS_SECRET_ACCESS_KEY="x"
    )
    spec = check_workflow(document)
    assert spec.call is not None
    assert (spec.call.run, spec.call.node, spec.call.head) == ("a-1", "miniwdl", True)
    (role,) = spec.stages[0].roles
    assert (role.resources.cpu_millicores, role.resources.memory_bytes) == (0, 0)
    assert dict(role.secrets) == {"TOKEN": "flowsched-token"}
    assert dict(role.env) == {"PATH": "/bin"}
    assert dict(spec.labels) == {"team": "x", "wes_workflow_type": "WDL"}
    assert [policy.action.name for policy in spec.stages[0].policies] == ["FAIL_STAGE", "FAIL_STAGE"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SNAKEMAKE_STORAGE_S3_SECRET_KEY", "x"),
        ("MINIWDL__FLOWSCHED__TOKEN", "x"),
        ("TOIL_TES_PASSWORD", "x"),
        ("NXF_some_secret", "x"),
        ("PIP_EXTRA_INDEX_URL", "https://a/simple https://me:pw@b/simple"),
        ("NXF_OPTS", os.fsdecode(b"\xff")),
    ],
)
def test_a_document_shows_no_secret_of_the_user(name: str, value: str) -> None:
    """Nor what no document can hold."""
    at = start(Path("/w"), "/bin/miniwdl")
    document = made(BY_NAME["miniwdl"], at, PIP_INDEX_URL="https://b/@simple", **{name: value})
    assert document["stages"][0]["env"] == {"PIP_INDEX_URL": "https://b/@simple"}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.program)
def test_an_engine_starts_in_no_other_folder(engine: Engine, tmp_path: Path) -> None:
    """It would leave its results there, and succeed."""
    process, said = ran(engine, start(tmp_path, "/bin/echo"), tmp_path)
    assert (process.returncode, said) == (1, "")


def test_two_snakemakes_of_flowsched_never_share_a_folder(tmp_path: Path) -> None:
    """The lock ends with its process, also with one that was killed: Snakemake's own would fail the next run."""
    at = start(tmp_path, "/bin/echo")
    lock = Path(at.folder, ".snakemake", "flowsched.lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process, said = ran(BY_NAME["snakemake"], at, tmp_path)
        assert (process.returncode, said) == (1, "")
    process, said = ran(BY_NAME["snakemake"], at, tmp_path)
    assert process.returncode == 0
    assert " --nolock " in said


def test_a_snakefile_of_another_folder_is_refused() -> None:
    """Its plugin would refuse it after the start."""
    at = start(Path("/w"), "/bin/snakemake")
    with pytest.raises(InvalidRequest, match='include: "workflow/Snakefile"'):
        made(BY_NAME["snakemake"], at._replace(source="/w/workflow/Snakefile", folder="/w"))
    made(BY_NAME["snakemake"], at._replace(source="/w/Snakefile", folder="/w/results"))


@pytest.mark.parametrize(
    ("program", "left", "text", "option"),
    [
        ("snakemake", "", "", "--rerun-incomplete"),
        (
            "nextflow",
            ".nextflow/history",
            "{at}nextflow -c /r/a-1.config run\n{other}nextflow run\n",
            "-resume 5-6",
        ),
        ("toil-cwl-runner", ".toil/a-1/files/shared/rootJobStoreID", "x", "--restart"),
    ],
)
def test_an_engine_that_was_lost_resumes(
    program: str, left: str, text: str, option: str, tmp_path: Path
) -> None:
    """Its own run, and not a later one of its folder; the first attempt does not."""
    at = start(tmp_path, "/bin/echo")
    folder = Path(at.folder)
    folder.mkdir()
    _, said = ran(BY_NAME[program], at, tmp_path)
    assert option.split()[0] not in said.split()
    if left:
        (folder / left).parent.mkdir(parents=True, exist_ok=True)
        told = {"at": "1\t2\tn\tERR\tr\t5-6\t", "other": "1\t2\tm\tOK\tr\t7-8\t"}
        (folder / left).write_text(text.format(**told))
    process, said = ran(BY_NAME[program], at, tmp_path, attempt=1)
    assert process.returncode == 0
    assert f" {option} " in f" {said}"


def test_toil_begins_anew_where_its_job_store_is_half_made(tmp_path: Path) -> None:
    """It can restart once the store names the root job, and refuses a store that is there. Stores of other runs stay."""
    at = start(tmp_path, "/bin/echo")
    stores = [Path(at.folder, ".toil", run) for run in ("a-1", "a-10")]
    for store in stores:
        (store / "files" / "shared").mkdir(parents=True)
    process, said = ran(BY_NAME["toil-cwl-runner"], at, tmp_path, attempt=1)
    assert process.returncode == 0
    assert "--restart" not in said
    assert [store.exists() for store in stores] == [False, True]


def test_nextflow_without_a_network_says_which_plug_in_it_lacks(tmp_path: Path) -> None:
    """A plug-in without a name would be its complaint. With several versions, the newest counts."""
    at, plugins = start(tmp_path, "/bin/echo"), tmp_path / "plug ins"
    Path(at.folder).mkdir()
    offline = {"NXF_OFFLINE": "true", "NXF_PLUGINS_DIR": str(plugins)}
    for left in ((), ("other-1.0", "nf-ga4gh-validator")):
        for name in left:
            (plugins / name).mkdir(parents=True)
        process, said = ran(BY_NAME["nextflow"], at, tmp_path, stderr=subprocess.STDOUT, **offline)
        assert process.returncode == 1
        assert f"{plugins}/nf-ga4gh-VERSION is missing" in said
        assert "NXF_PLUGINS_DIR" in said
    for version in ("1.9.0", "1.10.0"):
        (plugins / f"nf-ga4gh-{version}").mkdir()
    process, _ = ran(BY_NAME["nextflow"], at, tmp_path, **offline)
    assert process.returncode == 0
    assert "plugins { id 'nf-ga4gh@1.10.0' }\n" in (tmp_path / "work" / "a-1.config").read_text()


def test_sprocket_refuses_a_token_that_its_settings_cannot_hold(tmp_path: Path) -> None:
    """Sprocket would complain about a line of a file that the user did not write."""
    at = start(tmp_path, "/bin/echo")
    Path(at.folder).mkdir()
    process, said = ran(BY_NAME["sprocket"], at, tmp_path, stderr=subprocess.STDOUT, TOKEN="it's")
    assert process.returncode == 1
    assert "token has an apostrophe" in said
    assert not (tmp_path / "work" / "sprocket.toml").exists()


def test_an_engine_that_cannot_resume_is_not_started_again() -> None:
    """The policies of its stage say so; also of one that can, on a service that ends with its command."""
    policies = {
        (engine.program, again): len(
            made(engine, start(Path("/w"), "/bin/x"), again=again)["stages"][0]["policies"]
        )
        for engine in ENGINES
        if engine.program != "snakemake"
        for again in (False, True)
    }
    assert policies == {
        ("miniwdl", False): 2, ("miniwdl", True): 2, ("cromwell", False): 2, ("cromwell", True): 2,
        ("sprocket", False): 2, ("sprocket", True): 2, ("nextflow", False): 2, ("nextflow", True): 0,
        ("toil-cwl-runner", False): 2, ("toil-cwl-runner", True): 0,
    }  # fmt: skip


def test_the_job_store_of_toil_is_closed_for_other_accounts(tmp_path: Path) -> None:
    """Toil writes the token into it, readable for all."""
    folder = tmp_path / "of $(it)"
    (folder / ".toil").mkdir(parents=True, mode=0o755)
    _, said = ran(BY_NAME["toil-cwl-runner"], start(tmp_path, "/bin/echo"), tmp_path)
    assert f"--jobStore {folder}/.toil/a-1 " in said
    assert (folder / ".toil").stat().st_mode & 0o777 == 0o700
