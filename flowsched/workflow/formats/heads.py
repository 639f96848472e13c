"""Workflows in the languages of other engines, and the *head* of such a run: the engine's process as a workflow document. Pure.

The head begins the run and ends it. Its engine gets an endpoint that names the run, so each task that it sends belongs to the run.
An engine is a row of `ENGINES`; docs/engines.md has the settings of each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from flowsched.errors import InvalidRequest
from flowsched.workflow.run_tasks import HEAD

#: The name of the secret that has the service's token.
TOKEN_SECRET: Final = "flowsched-token"
#: The label of a head: the language, in the words of GA4GH WES.
TYPE_LABEL: Final = "wes_workflow_type"
#: So many tasks may be under way at a time: queueing is the service's. miniwdl has a thread for each.
_TASKS: Final = 200
#: Variables of the user that an engine gets, and variables that begin with one of these. A document shows its variables.
_VARIABLES: Final = ("HOME", "USER", "PATH", "LANG", "JAVA_HOME", "VIRTUAL_ENV", "SSL_CERT_FILE")
_PREFIXES: Final = ("MINIWDL__", "SNAKEMAKE_", "NXF_", "TOIL_", "CWL_", "SPROCKET_", "PIP_", "XDG_")
#: Names of variables that stay out of a document, as secrets; and values: a URL with a password, and what is no UTF-8.
_SECRET: Final = re.compile(r"_(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_UNFIT: Final = re.compile("://[^/\\s]*@|[\ud800-\udfff]")
#: A head asks for no room: a task that needs a whole node must find it. The limits keep an engine that leaks from its machine.
_LIMITS: Final = {"cpu": 2, "memory": "4Gi"}
#: Of an engine that cannot resume: a second one in the folder of the first would meet what that has left.
_POLICIES: Final = (
    {"event": "task_evicted", "action": "fail_stage"},
    {"event": "task_unknown", "action": "fail_stage"},
)
_REFERENCE: Final = re.compile(r"\$\([A-Za-z_][A-Za-z0-9_.-]*\)")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 60
#: Files that have the name of their project's folder instead of one of their own.
_UNNAMED: Final = ("main", "workflow", "snakefile")


class Start(NamedTuple):
    """A workflow that is to run, and its place.

    Args:
        program: The path of the engine's program.
        source: The path of the workflow.
        folder: Where the engine works, and leaves its results.
        arguments: Of the engine, behind the workflow.
        url: The service, as the engine reaches it.
        run: The id of the run.
        settings: The path of a file that the service has for engines: Cromwell's configuration.
    """

    program: str
    source: str
    folder: str
    arguments: Sequence[str]
    url: str
    run: str
    settings: str = ""

    @property
    def endpoint(self) -> str:
        """The base of the TES routes, which names the run."""
        return f"{self.url}/runs/{self.run}"


class Engine(NamedTuple):
    """An engine that runs workflows of one language.

    Args:
        program: The name of its program.
        language: The language, in the words of GA4GH WES.
        install: How to get it.
        script: The lines of a shell that become the engine. The token is in `TOKEN`, and `$here` is a folder for files of this run.
        params: The arguments that name a file of inputs, which stands for `{}`.
        version: The argument that prints its version.
        resumes: Whether its script goes on where an earlier attempt was lost.
    """

    program: str
    language: str
    install: str
    script: Callable[[Start], Sequence[str]]
    params: Sequence[str] = ("{}",)
    version: str = "--version"
    resumes: bool = False


def language_of(path: str, head: bytes = b"") -> str:
    """The language of a workflow by the name of its file, as GA4GH WES calls it; "" = one of flowsched's own.

    Args:
        path: Of the file.
        head: Its first bytes, which tell WDL of any name.
    """
    name = path.rpartition("/")[2].lower()
    if name == "snakefile" or name.endswith(".smk"):
        return "SMK"
    ends = {".wdl": "WDL", ".nf": "NFL", ".cwl": "CWL"}
    found = next((language for end, language in ends.items() if name.endswith(end)), "")
    return found or ("WDL" if _WDL.search(head) else "")


#: How a document in WDL begins, behind its comments.
_WDL: Final = re.compile(
    rb"^\s*(version\s+(1\.\d|draft-\d|development)|(workflow|task)\s+\w+\s*\{)", re.MULTILINE
)


def run_name(path: str) -> str:
    """The name of a run: its file's, or its project's where files of all projects are called the same."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    name = parts[-1].rpartition(".")[0] or parts[-1] if parts else ""
    while name.lower() in _UNNAMED and len(parts) > 1:
        parts.pop()
        name = parts[-1]
    return _NOT_IN_A_NAME.sub("-", name).strip("-.")[:_LONGEST_NAME] or "run"


def head(
    engine: Engine,
    start: Start,
    *,
    name: str,
    env: Mapping[str, str],
    labels: Mapping[str, str],
    token: bool,
    again: bool,
) -> dict[str, Any]:
    """The document of a run's head.

    Args:
        engine: The engine.
        start: The workflow, and its place.
        name: The run's name.
        env: The variables of the user; the engine gets those that it may need.
        labels: Of the run.
        token: Whether the service wants one; the engine gets it as a secret.
        again: Whether an engine that is lost starts again, if it can resume.
    """
    lines = [
        "here=$PWD",
        *engine.script(start),
    ]
    stage: dict[str, Any] = {
        "name": engine.program,
        # The service replaces $(NAME) in the arguments of a document, and $$(NAME) by $(NAME).
        "command": ["/bin/sh", "-c", _REFERENCE.sub(r"$\g<0>", "\n".join(lines))],
        "env": {
            key: value
            for key, value in env.items()
            if (key in _VARIABLES or key.startswith(_PREFIXES))
            and not (_SECRET.search(key) or _UNFIT.search(key + value))
        },
        "resources": {"cpu": 0, "memory": 0},
        "limits": _LIMITS,
        "policies": [] if again and engine.resumes else list(_POLICIES),
    }
    if token:
        stage["secrets"] = {"TOKEN": TOKEN_SECRET}
    return {
        "name": name,
        "labels": {**labels, TYPE_LABEL: engine.language},
        "kind": f"{engine.program} {name}",
        "call": {
            "run": start.run, "run_name": name, "source": engine.program, "node": engine.program, "task": HEAD, "head": True
        },
        "stages": [stage],
    }  # fmt: skip


def _in_folder(start: Start, *words: str) -> Sequence[str]:
    """The last lines of a script: the engine takes the place of the shell, in its folder."""
    return [f"cd {shlex.quote(start.folder)} || exit 1", f"exec {' '.join(words)}"]


def _miniwdl(start: Start) -> Sequence[str]:
    return [
        "export MINIWDL__SCHEDULER__CONTAINER_BACKEND=flowsched",
        f"export MINIWDL__SCHEDULER__TASK_CONCURRENCY={_TASKS}",
        f"export MINIWDL__FLOWSCHED__URL={shlex.quote(start.url)} MINIWDL__FLOWSCHED__RUN={shlex.quote(start.run)}",
        'export MINIWDL__FLOWSCHED__TOKEN="$TOKEN"',
        *_in_folder(start, shlex.join((start.program, "run", start.source, *start.arguments))),
    ]


def _snakemake(start: Start) -> Sequence[str]:
    above, here = start.source.rpartition("/")[0] + "/", f"{start.folder}/"
    if not here.startswith(above):
        raise InvalidRequest(
            f"Snakemake's TES plugin wants its Snakefile in the folder where it works: found {start.source}, expected one in "
            f'{here}. Write a Snakefile there with the line `include: "{start.source.removeprefix(here)}"`, and '
            "run that one with a target behind `--`, as `-- all`"
        )
    own = f"export PATH={shlex.quote(start.program.rpartition('/')[0])}:$PATH"
    folder, engine = _in_folder(
        start,
        shlex.quote(start.program),
        '"$@"',
        shlex.join(("--snakefile", start.source, "--nolock", "--executor", "tes", "--tes-url", start.endpoint)),
        shlex.join(("--default-storage-provider", "fs", "--default-storage-prefix", start.folder)),
        shlex.join(("--seconds-between-status-checks", "2", "--precommand", own, "--jobs", str(_TASKS), *start.arguments)),
    )  # fmt: skip
    return [
        # The plugin reads this file of its own tests when a task fails.
        'touch funnel.log; export GITHUB_WORKSPACE="$here" SNAKEMAKE_TES_TOKEN="$TOKEN"',
        folder,
        # Snakemake's own locks outlive one that is killed; this one ends with it.
        "mkdir -p .snakemake && exec 9>>.snakemake/flowsched.lock || exit 1",
        "flock -n 9 || { echo 'another run of flowsched works in this folder' >&2; exit 1; }",
        '[ "$FLOWSCHED_ATTEMPT" = 0 ] || set -- --rerun-incomplete',
        engine,
    ]


def _nextflow(start: Start) -> Sequence[str]:
    settings = "\n".join((
        "process.executor = 'tes'",
        f"tes.endpoint = '{start.endpoint}'",
        "tes.oauthToken = System.getenv('TOKEN')",
        "tes.timeout = 60",
        f"executor.queueSize = {_TASKS}",
    ))  # fmt: skip
    config = shlex.quote(f"{start.run}.config")
    folder, engine = _in_folder(
        start,
        shlex.quote(start.program),
        f'-c "$here"/{config} run "$@"',
        shlex.join((start.source, "-ansi-log", "false", *start.arguments)),
    )
    # Without a network, Nextflow wants the version of each plug-in.
    offline = (
        'plugin=nf-ga4gh plugins="${NXF_PLUGINS_DIR:-${NXF_HOME:-$HOME/.nextflow}/plugins}"',
        '[ "$NXF_OFFLINE" != true ] || plugin=$(ls "$plugins" |',
        "grep '^nf-ga4gh-[0-9]' | sort -V | tail -n 1 | sed s/4gh-/4gh@/)",
        '[ "$plugin" ] || { echo "NXF_OFFLINE is true, and the folder $plugins/nf-ga4gh-VERSION is missing. Install this plug-in of'
        ' Nextflow there, or set NXF_PLUGINS_DIR to the folder that has it" >&2; exit 1; }',
    )
    # The history has the session of each command. The last one of the folder may be that of another run.
    session = f"session=$(grep -sF /{config} .nextflow/history | tail -n 1 | cut -f 6)"
    resume = '[ -z "$session" ] || set -- -resume "$session"'
    resumed = () if "-resume" in start.arguments else (session, resume)
    write = f'printf "plugins {{ id \'%s\' }}\\n%s\\n" "$plugin" {shlex.quote(settings)} > {config}'
    return [*offline, write, folder, *resumed, engine]


def _toil(start: Start) -> Sequence[str]:
    store = f"{start.folder}/.toil/{start.run}"
    quoted = shlex.quote(store)
    return [
        'export TOIL_TES_BEARER_TOKEN="$TOKEN"',
        # The job store has the token, in a file that other accounts may read.
        f"cd {shlex.quote(start.folder)} && mkdir -p .toil && chmod 700 .toil || exit 1",
        # Without a root job Toil can neither restart in this run's store nor make the store anew.
        f"if [ -s {quoted}/files/shared/rootJobStoreID ]; then set -- --restart; else rm -rf {quoted}; fi",
        *_in_folder(
            start,
            shlex.join((start.program, "--batchSystem", "tes", "--tesEndpoint", start.endpoint)),
            shlex.join(("--jobStore", store, "--outdir", start.folder)),
            '"$@"',
            shlex.join((start.source, *start.arguments)),
        ),
    ]


def _cromwell(start: Start) -> Sequence[str]:
    config = "-Dbackend.providers.flowsched.config"
    options = shlex.join(
        (
            f"-Dconfig.file={start.settings}",
            f"{config}.root={start.folder}/cromwell-executions",
            f"{config}.endpoint={start.endpoint}/ga4gh/tes/v1/tasks",
        )
    )
    return [
        f'export FLOWSCHED_TOKEN="$TOKEN" JAVA_TOOL_OPTIONS={shlex.quote(options)}',
        *_in_folder(start, shlex.join((start.program, "run", start.source, *start.arguments))),
    ]


def _sprocket(start: Start) -> Sequence[str]:
    # Sprocket copies inputs into this folder, but makes no folder, and fails where an earlier run has left the same file.
    storage = f"{start.folder}/out/tes/{start.run}"
    settings = "\n".join((
        "run.backend = 'flowsched'",
        "[run.backends.flowsched]",
        "type = 'tes'",
        f"url = '{start.endpoint}/ga4gh/tes/v1/'",
        f'inputs = "file://{quote(storage)}/inputs/"',
        f'outputs = "file://{quote(storage)}/outputs/"',
        "insecure = true",
        "interval = 2",
        "retries = 10",
        "[run.backends.flowsched.auth]",
        "type = 'bearer'",
    ))  # fmt: skip
    folder, engine = _in_folder(
        start,
        shlex.quote(start.program),
        '--config "$here/sprocket.toml" run',
        shlex.join((start.source, *start.arguments)),
    )
    return [
        "case $TOKEN in *\\'*) echo \"Sprocket's settings cannot hold the service's token, since the token has"
        ' an apostrophe. Start the service with another token" >&2; exit 1 ;; esac',
        f"(umask 077; printf '%s\\n' {shlex.quote(settings)} \"token = '$TOKEN'\" > sprocket.toml)",
        folder,
        f"mkdir -p {shlex.quote(storage)}/inputs/file",
        engine,
    ]


#: The engines of each language, the first that is there counts.
ENGINES: Final = (
    Engine("miniwdl", "WDL", "pip install 'flowsched[wdl]'", _miniwdl, ("-i", "{}")),
    Engine("cromwell", "WDL", "conda install -c bioconda cromwell", _cromwell, ("-i", "{}")),
    Engine("sprocket", "WDL", "cargo install --locked sprocket", _sprocket, ("@{}",)),
    Engine(
        "snakemake", "SMK", "pip install snakemake snakemake-executor-plugin-tes snakemake-storage-plugin-fs six",
        _snakemake, ("--configfile", "{}"), resumes=True,
    ),
    Engine(
        "nextflow", "NFL", "https://www.nextflow.io/docs/latest/install.html", _nextflow, ("-params-file", "{}"), "-version",
        resumes=True,
    ),
    Engine(
        "toil-cwl-runner", "CWL",
        "pip install 'toil[cwl]<8' toil-batch-system-tes six 'galaxy-util<24.2' 'galaxy-tool-util<24.2' 'setuptools<81'", _toil,
        resumes=True,
    ),
)  # fmt: skip
