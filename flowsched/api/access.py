"""Who may do what: the token, and the two checks that keep other people's web pages out of a local service.

Without a token flowsched listens on loopback only (`serve` refuses anything else), where every page in the
user's browser could reach it: by a host name that its owner points at 127.0.0.1 (DNS rebinding, stopped by
the `Host` check), or by a form or `fetch` that sends blindly (stopped by the `Origin` check).
"""

from __future__ import annotations

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
    """Compare in constant time; the scheme's case does not matter (RFC 9110)."""
    scheme, _, given = authorization.partition(" ")
    wanted = token.encode("utf-8", "surrogateescape")
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), wanted)
    if scheme.lower() != "bearer" or not same:
        raise Unauthorized("Send the header `Authorization: Bearer <token>` with this server's token")


def check_host(host: str) -> None:
    """Only names that mean this machine, whoever resolves them."""
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

    What matched no route needs the token too: a stranger does not learn which routes exist.
    """
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    return policies.get((method, resource.canonical if resource else ""), Policy.WRITE)
