"""Names that Kubernetes accepts, from names that flowsched gave: deterministic, and different where those are different.

A name that Kubernetes would take as it is stays as it is. One that had to be changed (capitals, `_`, too long) ends in `-h`
and 75 bits of its hash, which no name that stays ends in by itself: pods end in `-<attempt>`, groups in `-g<generation>`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flowsched.cluster.node.environment import Address, loopback

#: RFC 1123: a DNS label. Names are kept to one, although most kinds may be longer: a pod's name is then a host's name.
LABEL_LENGTH: Final = 63
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.DOTALL
)
_NOT_DNS: Final = re.compile(r"[^a-z0-9]+")
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NOT_IN_A_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SECRET_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_MARK: Final = "-h"
_HASH_LENGTH: Final = 15
#: The key of a secret that is named without one.
DEFAULT_KEY: Final = "value"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One value of one Secret."""

    name: str
    key: str


@lru_cache(maxsize=8192)
def dns_label(text: str) -> str:
    """A DNS label (at most 63 letters, digits and dashes) for a text."""
    if _DNS_LABEL.fullmatch(text):
        return text
    return _marked(_NOT_DNS.sub("-", text.lower()).strip("-") or "x", text)


def pod_name(engine_name: str) -> str:
    """The one name of one attempt's pod object, also its host name where it needs one."""
    return dns_label(engine_name)


def group_name(workflow: str, stage: str, shard: int, generation: int) -> str:
    """The name of a gang's PodGroup, and of its Service and Secret: one for each generation of each shard."""
    return dns_label(f"fs-{workflow}-{stage}-{shard}-g{generation}")


def member_host(role: str, role_index: int) -> str:
    """The host name of a gang's member below its Service."""
    return dns_label(f"{role}-{role_index}")


def service_host(service: str, namespace: str) -> str:
    """The DNS name of a Service, for any pod of the cluster. A gang's members are below it, by their `member_host`."""
    return f"{service}.{namespace}.svc"


def address_below(service: str) -> Address:
    """Where the members of a gang are found: below this Service (`service_host`), or at loopback addresses where it is ""."""
    if not service:
        return loopback
    return lambda member: f"{member_host(member.role, member.role_index)}.{service}"


@lru_cache(maxsize=8192)
def label_value(text: str) -> str:
    """A label's value (at most 63 letters, digits, `-`, `_` and `.`) for a text; "" stays ""."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return _marked(_NOT_IN_A_LABEL.sub("-", text).strip("-._") or "x", text)


def secret_key(reference: str) -> SecretKey | None:
    """Which Secret a reference means: `name` is key `value` of it, `name/key` says the key. None: there can be none."""
    name, slash, key = reference.partition("/")
    if not slash:
        key = DEFAULT_KEY
    if not is_dns_subdomain(name) or key in (".", "..") or not _SECRET_KEY.fullmatch(key):
        return None
    return SecretKey(name, key)


def is_dns_subdomain(text: str) -> bool:
    """Whether a text may be the name of most Kubernetes objects."""
    return _DNS_SUBDOMAIN.fullmatch(text) is not None


def _marked(cleaned: str, text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    suffix = _MARK + base64.b32encode(digest).decode().lower()[:_HASH_LENGTH]
    return cleaned[: LABEL_LENGTH - len(suffix)].rstrip("-._") + suffix
