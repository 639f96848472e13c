"""`$(NAME)` as the kubelet expands it, and texts spelled so that it arrives at what flowsched means.

The kubelet is not what `cluster.environment.expand` is: it turns every `$$` into `$`, ends a name at the first `)` whatever
stands before it, and expands values of variables too, where flowsched takes them as they are. A text on which both agree
is sent verbatim, which is nearly always.

Source: k8s.io/kubernetes third_party/forked/golang/expansion (v1.36.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from flowsched.cluster.environment import expand

#: What `cluster.environment.expand` takes for a reference.
_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
#: Every container gets variables of the API server's own Service, whatever `enableServiceLinks` says.
_SERVICE_PREFIX: Final = "KUBERNETES_"
#: The value of what the kubelet knows and we do not: no expansion of ours can be equal to a text that holds it.
_UNKNOWN: Final = "\0"


def kubelet_expand(text: str, values: Mapping[str, str]) -> str:
    """What the kubelet makes of an argument, or of a variable's value, where it knows these variables."""
    parts: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0 and dollar + 1 < len(text):
        parts.append(text[at:dollar])
        follower = text[dollar + 1]
        end = text.find(")", dollar + 2)
        if follower == "$":
            parts.append("$")
            at = dollar + 2
        elif follower == "(" and end >= 0:
            name = text[dollar + 2 : end]
            parts.append(values.get(name, f"$({name})"))
            at = end + 1
        else:
            parts.append(text[dollar : dollar + 2])
            at = dollar + 2
    return "".join(parts) + text[at:]


def literal(text: str) -> str:
    """A text that the kubelet expands to `text`, whatever variables there are."""
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


def spelled(argument: str, env: Mapping[str, str], hidden: Iterable[str] = ()) -> str:
    """An argument that the kubelet expands to what it is on a local cluster.

    Args:
        argument: As the user wrote it.
        env: The variables that `$(NAME)` means on a local cluster.
        hidden: Variables that the kubelet knows beside them: they are not expanded locally, nor here.
    """
    if "$" not in argument:
        return argument
    meant = expand(argument, env)
    known = {**_services(argument), **dict.fromkeys(hidden, _UNKNOWN), **env}
    if kubelet_expand(argument, known) == meant:
        return argument
    return _rewritten(argument, env)


def _rewritten(argument: str, env: Mapping[str, str]) -> str:
    """The same references, and everything else literal."""
    parts: list[str] = []
    at = 0
    for found in _REFERENCE.finditer(argument):
        parts.append(argument[at : found.start()].replace("$", "$$"))
        escaped, name = found.groups()
        parts.append(found[0] if name in env and not escaped else f"$$({name})")
        at = found.end()
    return "".join(parts) + argument[at:].replace("$", "$$")


def _services(argument: str) -> dict[str, str]:
    """The names in a text that may be variables of the API server's Service."""
    words = argument.replace("(", ")").split(")")
    return {word: _UNKNOWN for word in words if word.startswith(_SERVICE_PREFIX)}
