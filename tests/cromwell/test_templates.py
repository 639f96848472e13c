"""Our flowsched.conf as Cromwell reads it: whatever stands in a WDL arrives as it is, and none of it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from tests.cromwell import draft2
from tests.cromwell.draft2 import Long, Maybe, Value, WdlError
from tests.cromwell.values import HOSTILE

CONF = Path(__file__).parents[2] / "deploy" / "cromwell" / "flowsched.conf"
CONFIG = draft2.config(CONF)
RECORDER = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORD"
"""

Run = Callable[..., list[str]]


def standard(docker: bool) -> dict[str, Value]:
    """What Cromwell itself gives to submit and submit-docker."""
    cwd = "/data/cromwell-executions/w/0f1b/call-c"
    inside = "/cromwell-executions/w/0f1b/call-c"
    found: dict[str, Value] = dict(draft2.declared(CONFIG["runtime-attributes"]))
    found |= {
        "job_name": "cromwell_0f1b_c",
        "cwd": cwd,
        "script": f"{cwd}/execution/script",
        "job_shell": "/bin/bash",
    }
    found |= {"out": f"{cwd}/execution/stdout", "err": f"{cwd}/execution/stderr"}
    if docker:
        found |= {
            "docker_cwd": inside,
            "docker_script": f"{inside}/execution/script",
            "docker": Maybe("ubuntu:24.04"),
        }
        found |= {"docker_out": f"{inside}/execution/stdout", "docker_err": f"{inside}/execution/stderr"}
        found |= {"docker_cid": f"{cwd}/execution/docker_cid"}
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write a template's script as Cromwell does and run it; returns the arguments that a `flowsched` on the PATH was given."""
    recorder = tmp_path / "bin" / "flowsched"
    recorder.parent.mkdir()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)

    def ran(template: str, values: dict[str, Value], line_end: str = r"\r?\n") -> list[str]:
        script = tmp_path / "script.submit"
        script.write_text(draft2.script(template, values, line_end), encoding="utf-8", newline="")
        environment = {
            **os.environ,
            "PATH": f"{recorder.parent}:{os.environ['PATH']}",
            "RECORD": str(tmp_path / "argv"),
        }
        subprocess.run(["/bin/bash", str(script)], cwd=tmp_path, env=environment, check=True, timeout=120)
        assert not (tmp_path / "pwned").exists(), "a value was run"
        return [os.fsdecode(text) for text in (tmp_path / "argv").read_bytes().split(b"\0")[:-1]]

    return ran


def option(arguments: list[str], name: str) -> str | None:
    """An option's value, decoded by other means than the command's own."""
    found = [text for text in arguments if text.startswith(f"--{name}=")]
    assert len(found) <= 1
    return os.fsdecode(unquote_to_bytes(os.fsencode(found[0].partition("=")[2]))) if found else None


@pytest.mark.parametrize("line_end", [r"\r?\n", r"[\r\n]+"], ids=["today's Cromwell", "older Cromwells"])
@pytest.mark.parametrize("hostile", HOSTILE, ids=[ascii(text)[:24] for text in HOSTILE])
@pytest.mark.parametrize(
    ("template", "texts", "count"),
    [
        ("submit", {"job_name": "name", "cwd": "cwd", "script": "script", "job_shell": "shell"}, 15),
        (
            "submit-docker",
            {
                "job_name": "name",
                "cwd": "cwd",
                "docker_cwd": "docker-cwd",
                "docker_script": "script",
                "job_shell": "shell",
            },
            17,
        ),
    ],
    ids=["submit", "submit-docker"],
)
def test_every_text_arrives_as_it_was_written(
    run: Run, hostile: str, line_end: str, template: str, texts: dict[str, str], count: int
) -> None:
    """All texts of a job at once hold it; bash runs none of it, and changes none of it."""
    values = standard(docker=template == "submit-docker") | dict.fromkeys([*texts, "err"], hostile)
    given = {"queue": "queue", "gpuType": "gpu-type"} | (
        {"docker": "image"} if template == "submit-docker" else {}
    )
    values |= dict.fromkeys(given, Maybe(hostile))
    arguments = run(CONFIG[template], values, line_end)
    assert arguments[:3] == ["cromwell", "submit", "--encoded"]
    assert len(arguments) == count
    for name in [*texts.values(), *given.values()]:
        assert option(arguments, name) == hostile
    assert option(arguments, "rc-file") == f"{hostile}/execution/rc"
    assert option(arguments, "stderr") == f"{hostile}.background"
    assert arguments[-6:-2] == ["--cpu=1", "--memory-mb=2000", "--disk-gb=10", "--gpu=0"]


def test_a_zero_byte_is_marked_for_refusal(run: Run) -> None:
    """Bash would drop it silently; so it is written as %00, which the command refuses."""
    texts = ("job_name", "cwd", "docker_cwd", "script", "docker_script", "job_shell", "err")
    wishes = ("docker", "queue", "gpuType")
    for template in ("submit", "submit-docker"):
        values = standard(docker=template == "submit-docker")
        values |= dict.fromkeys(texts, "a\0b") | dict.fromkeys(wishes, Maybe("a\0b"))
        arguments = run(CONFIG[template], values)
        assert [text for text in arguments[3:] if "a%00b" not in text] == [
            "--cpu=1",
            "--memory-mb=2000",
            "--disk-gb=10",
            "--gpu=0",
        ]


def test_what_is_not_given_is_not_passed(run: Run) -> None:
    """An attribute that a task does not set leaves no trace, not even an empty argument."""
    cwd = "/data/cromwell-executions/w/0f1b/call-c"
    assert run(CONFIG["submit"], standard(docker=False)) == [
        "cromwell",
        "submit",
        "--encoded",
        "--name=cromwell_0f1b_c",
        f"--cwd={cwd}",
        f"--script={cwd}/execution/script",
        "--shell=/bin/bash",
        f"--rc-file={cwd}/execution/rc",
        f"--stderr={cwd}/execution/stderr.background",
        "--cpu=1",
        "--memory-mb=2000",
        "--disk-gb=10",
        "--gpu=0",
    ]


def test_numbers_are_passed_where_they_are_given(run: Run) -> None:
    """Optional whole numbers too."""
    given = {"cpu": 4, "memory_mb": Long(8192), "gpuCount": 2, "disk_gb": Long(50), "priority": Maybe(7)}
    given |= {"timeout_minutes": Maybe(90), "runtime_minutes": Maybe(30)}
    assert run(CONFIG["submit"], standard(docker=False) | given)[-7:] == [
        "--cpu=4",
        "--memory-mb=8192",
        "--disk-gb=50",
        "--gpu=2",
        "--priority=7",
        "--timeout-minutes=90",
        "--runtime-minutes=30",
    ]


@pytest.mark.parametrize(
    ("key", "word"), [("kill", "kill"), ("kill-docker", "kill"), ("check-alive", "alive")]
)
def test_the_other_commands_name_the_job(run: Run, tmp_path: Path, key: str, word: str) -> None:
    """kill, kill-docker and check-alive are given the id that job-id-regex took; the last one also where `rc` is."""
    identity = draft2.job_id(CONFIG["job-id-regex"], "flowsched-job w0dj8k3ma9q2x7vn1b4c5\n")
    assert identity == "w0dj8k3ma9q2x7vn1b4c5"
    arguments = run(CONFIG[key], {"job_id": identity})
    assert arguments[:3] == ["cromwell", word, identity]
    beside = [f"--rc-file={tmp_path}/rc"] if key == "check-alive" else []  # the script lies beside it
    assert arguments[3:] == beside


def test_both_files_say_what_cromwell_needs() -> None:
    """Each is one whole provider of the right kind."""
    sfs = "cromwell.backend.impl.sfs.config.ConfigBackendLifecycleActorFactory"
    assert draft2.provider(CONF)["actor-factory"] == sfs
    tes_file = CONF.with_name("flowsched-tes.conf")
    assert (
        draft2.provider(tes_file)["actor-factory"]
        == "cromwell.backend.impl.tes.TesBackendLifecycleActorFactory"
    )
    tes = draft2.config(tes_file)
    assert tes["endpoint"] == "http://127.0.0.1:8470/ga4gh/tes/v1/tasks"
    for config in (tes, CONFIG):
        assert (config["root"], config["dockerRoot"]) == ("/data/cromwell-executions", "/cromwell-executions")
    assert tes["use_tes_11_preview_backend_parameters"] is True
    assert tes["default-runtime-attributes"]["maxRetries"] == 0
    assert tes["filesystems"]["http"]["enabled"] is True
    assert CONFIG["exit-code-timeout-seconds"] == 120
    assert CONFIG["default-runtime-attributes"]["maxRetries"] == 0
    for file in (CONF, tes_file):
        whole = draft2.whole(file)
        assert whole["docker.hash-lookup"] == {"enabled": True, "method": "remote"}
        assert whole["system.abort.scan-frequency"].seconds == 5


@pytest.mark.parametrize("name", ["disk_gb", "memory_mb", "cpu"])
def test_what_cromwell_makes_compulsory_cannot_be_optional(name: str) -> None:
    """Cromwell 52 and later lose the question mark of these: every task without the attribute is refused, 16 times."""
    assert draft2.declared(f"Int {name} = 10") == {name: 10}
    with pytest.raises(WdlError, match="NOT FOUND"):
        draft2.declared(f"Int? {name}")


# ------------------------------------------------------------------------------------------ the reading itself


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("a ${x} b", {"x": "1"}, "a 1 b"),
        ("${'--q ' + x}", {"x": Maybe("v")}, "--q v"),
        ("${'--q ' + x}", {"x": Maybe(None)}, ""),
        ("${x}", {"x": Maybe(None)}, ""),
        ("${if defined(x) then 'yes' else 'no'}", {"x": Maybe(None)}, "no"),
        ("${if defined(x) then 'yes' else 'no'}", {"x": Maybe("")}, "yes"),
        (r"${sub(x, 'a', '\\$0\\\\')}", {"x": "bab"}, "b$0\\b"),
        (r"${sub(x, 'a', '[$0]')}", {"x": "bab"}, "b[a]b"),
        (r"${'\n\t\\\'\u0041\101'}", {}, "\n\t\\'AA"),
        ("    | margin", {}, " margin"),
    ],
)
def test_cromwells_expressions(template: str, values: dict[str, Value], expected: str) -> None:
    """Optionals, sub with Java's special characters, escapes, and the margin that Scala takes off."""
    assert draft2.instantiated(template, values) == expected


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("a } b", {}),
        ("${sub(x, 'a', 'b')}", {"x": Maybe("a")}),
        ("${sub('' + x, 'a', 'b')}", {"x": Maybe(None)}),
        (r"${sub(x, 'a', '\\')}", {"x": "a"}),
        ("${sub(x, 'a', '$1')}", {"x": "a"}),
        (r"${'\d'}", {}),
        ("${y}", {"x": "1"}),
        ("${iffy}", {"iffy": "1"}),
        ("${'--disk-gb=' + x}", {"x": Long(10)}),
    ],
)
def test_what_cromwell_refuses(template: str, values: dict[str, Value]) -> None:
    """A lone brace, sub of an optional, a bad replacement, an escape that WDL has not, a name that is not declared, an amount."""
    with pytest.raises(WdlError):
        draft2.instantiated(template, values)


JAVA = """
import java.io.*; import java.nio.charset.StandardCharsets; import java.util.HexFormat;
public class Encode {
  public static void main(String[] none) throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    for (String line; (line = in.readLine()) != null; ) {
      String text = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
      text = text.replaceAll("%", "%25").replaceAll("'", "%27").replaceAll("\\n", "%0A").replaceAll("\\r", "%0D")
          .replaceAll("\\0", "%00").replaceAll("x", "\\\\$0\\\\\\\\").replaceAll("y", "[$0]");
      System.out.println(HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8)));
    }
  }
}
"""


def test_java_itself_replaces_as_we_think(tmp_path: Path) -> None:
    """The same replacements by a real Java, special characters of the replacement included."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on this machine: its replaceAll is only emulated")
    source = tmp_path / "Encode.java"
    source.write_text(JAVA)
    texts = [*HOSTILE, "a\0b", "xyz $x\\y"]
    done = subprocess.run(
        [java, str(source)],
        input="\n".join(text.encode().hex() for text in texts),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_java = [bytes.fromhex(line).decode() for line in done.stdout.split("\n")[:-1]]
    steps = [
        ("%", "%25"),
        ("'", "%27"),
        ("\n", "%0A"),
        ("\r", "%0D"),
        ("\0", "%00"),
        ("x", r"\$0\\"),
        ("y", "[$0]"),
    ]
    ours = list(texts)
    for pattern, replacement in steps:
        ours = [draft2.replace_all(text, pattern, replacement) for text in ours]
    assert by_java == ours
