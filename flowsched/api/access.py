"""Access: the token, and the two checks that keep other people's web pages out of a local service.

Without a token flowsched listens on loopback only (`serve` refuses anything else), where every page in the user's browser could
reach it: by a host name that its owner points at 127.0.0.1 (DNS rebinding, stopped by the `Host` check), or by a form or
`fetch` that sends blindly (stopped by the `Origin` check).
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Mapping

from aiohttp import web

from flowsched.api.routes import Policy
from flowsched.errors import Forbidden, Unauthorized


def admit(policy: Policy, token: str | None, method: str, headers: Mapping[str, str]) -> None:
    """Let a request pass, or raise.

    Raises:
        Forbidden: Another host name or another origin.
        Unauthorized: No token, or a wrong one.
    """
    if policy is Policy.OPEN:
        return
    if token is None:
        check_host(headers.get("Host", ""))
    else:
        check_token(token, headers.get("Authorization", ""))
    if policy is Policy.WRITE or method not in ("GET", "HEAD"):
        check_origin(headers)


def check_token(token: str, authorization: str) -> None:
    """Compare in constant time; the scheme's case does not matter (RFC 9110).

    The token is also taken as the password of any user (`Basic`): some clients can send nothing else, such as a kube-scheduler
    that calls its extender, which sends what stands in the URL before the host.
    """
    scheme, _, credentials = authorization.partition(" ")
    offered = _password(credentials) if scheme.lower() == "basic" else _text(credentials)
    wanted = token.encode("utf-8", "surrogateescape")
    same = hmac.compare_digest(offered or b"", wanted)
    if scheme.lower() not in ("basic", "bearer") or offered is None:
        raise Unauthorized("Send the header `Authorization: Bearer <token>` with this server's token")
    if not same:
        raise Unauthorized("The token of the header `Authorization` is not this server's")


def _text(credentials: str) -> bytes:
    return credentials.strip().encode("utf-8", "surrogateescape")


def _password(credentials: str) -> bytes | None:
    """The password of Basic credentials (RFC 7617); None if they are none. A user's name has no colon in it."""
    try:
        _, colon, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return password if colon else None


def check_host(host: str) -> None:
    """Only names that mean this machine for every resolver."""
    if not is_loopback(host_name(host)):
        raise Forbidden(
            "Without a token this server answers only to localhost, 127.0.0.1 and [::1]; "
            "ask for one of these, or start it with a token"
        )


def check_origin(headers: Mapping[str, str]) -> None:
    """Pages of other origins may not change anything. Programs send no `Origin`, our own page sends ours."""
    origin = headers.get("Origin")
    ours = origin is None or origin.lower().partition("://")[2] == headers.get("Host", "").lower()
    if not ours or headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise Forbidden("Pages of another origin may not change anything here")


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(name: str) -> bool:
    """Whether a host name or address is this machine for certain."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def policy_of(request: web.Request, policies: Mapping[tuple[str, str], Policy]) -> Policy:
    """The policy of the route that aiohttp resolved, never of the path as text: no spelling gets round it.

    A request that matches no route needs the token too: a client without it does not learn which routes exist.
    """
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    path = "" if resource is None else resource.canonical
    return policies.get((method, path.rstrip("/") or path), Policy.WRITE)
