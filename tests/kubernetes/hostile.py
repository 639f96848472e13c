"""Sixty texts that have broken what puts texts into documents, and where a user may put a text of his own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import structs

from flowsched.executor.protocol import GangSeat, InputFile, OutputFile, Pod, Roster

TEXTS: Final = (
    # ends of lines and of strings
    "\n", "\r\n", "a\nb", "a\n\n---\nkind: Pod", "\t", '"', "'", '"}', "'\"`", "\\", "\\\\", '\\"', '\\u0022', "`id`",
    # YAML
    "a: b", "- a", "{a: b}", "!!python/object/apply:os.system [id]", "&a *a", "# comment", "|\n  x", "yes", "null", "~",
    "hostNetwork: true", "\nhostNetwork: true\nhostPID: true", "securityContext:\n  privileged: true",
    # JSON
    '{"privileged": true}', '"},"hostNetwork":true,"x":{"y":"', "[]", '","command":["sh"],"x":"', "\\u0000", "1e999", "-0",
    # templates
    "{{ .Values.x }}", "{{- printf }}", "${HOME}", "$HOME", "$(HOME)", "$$(HOME)", "$(FLOWSCHED_SIGNATURE)", "$$", "$$$(HOME)",
    "%s%n", "<%= x %>", "#{7*7}", "{{7*7}}", "${jndi:ldap://x}", "$(KUBERNETES_SERVICE_HOST)",
    # shells and paths
    "; rm -rf /", "&& id", "| sh", "-rf", "--", "../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "*", "~root",
    # characters
    "é", "\u202e", "\ufeff", "\x1b[2J", "\x7f", "😀", "ｆｕｌｌ", "a" * 300, " ", "",
    # markup
    "<script>alert(1)</script>", "<!--", "]]>", "javascript:alert(1)",
)  # fmt: skip
assert len(TEXTS) >= 60

#: Field -> a task with a text in it.
PLACES: Final[Mapping[str, Callable[[Pod, str], Pod]]] = {
    "command": lambda pod, text: structs.replace(pod, command=("run", text)),
    "first of command": lambda pod, text: structs.replace(pod, command=(text, "x")),
    "env": lambda pod, text: structs.replace(pod, env={"MODE": text}),
    "env name": lambda pod, text: structs.replace(pod, env={text: "x"}),
    "secret": lambda pod, text: structs.replace(pod, secrets={"TOKEN": text}),
    "secret's key": lambda pod, text: structs.replace(pod, secrets={"TOKEN": f"aws/{text}"}),
    "secret's variable": lambda pod, text: structs.replace(pod, secrets={text: "aws"}),
    "role": lambda pod, text: _role(pod, text or "-"),
    "gang's token": lambda pod, text: structs.replace(
        pod, gang=GangSeat("a", 0, 0, 0, Roster((("a", 0, 1),)), text)
    ),
    "image": lambda pod, text: structs.replace(pod, image=text),
    "item": lambda pod, text: structs.replace(pod, item=text),
    "input name": lambda pod, text: _input(pod, name=text),
    "input uri": lambda pod, text: _input(pod, uris=(text,)),
    "input uris": lambda pod, text: _input(pod, uris=(text, text), manifest=True),
    "output name": lambda pod, text: _output(pod, name=text),
    "output path": lambda pod, text: _output(pod, path=text),
    "output uri": lambda pod, text: _output(pod, uri=text),
    "name": lambda pod, text: structs.replace(pod, name=text),
    "workflow": lambda pod, text: structs.replace(pod, workflow=text),
    "stage": lambda pod, text: structs.replace(pod, stage=text),
}


def _input(pod: Pod, **changes: Any) -> Pod:
    return structs.replace(pod, inputs=(InputFile(**{"name": "reads", "uris": ("s3://x",), **changes}),))


def _output(pod: Pod, **changes: Any) -> Pod:
    return structs.replace(
        pod, outputs=(OutputFile(**{"name": "bam", "path": "a.bam", "uri": "flowsched:x", **changes}),)
    )


def _role(pod: Pod, role: str) -> Pod:
    return structs.replace(pod, gang=GangSeat(role, 0, 0, 0, Roster(((role, 0, 1), ("other", 1, 1))), "t"))
