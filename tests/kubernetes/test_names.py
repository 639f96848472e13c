"""Names, in literals and for any text."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.objects.names import (
    SecretKey,
    address_below,
    dns_label,
    group_name,
    is_dns_subdomain,
    label_value,
    member_host,
    pod_name,
    secret_key,
    service_host,
)
from flowsched.executor.protocol import Member

WORKFLOW = "w00000001jd9kq3c5v7xyz"
#: What a stage may be called: `flowsched.workflow.document.reader.STAGE`.
stages = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", fullmatch=True)
texts = st.text() | st.text(string.ascii_letters + string.digits + "-_.", max_size=80)


def test_a_name_that_kubernetes_takes_stays() -> None:
    """Nothing is added to what is a DNS label already."""
    assert pod_name(f"fs-{WORKFLOW}-align-17-2") == f"fs-{WORKFLOW}-align-17-2"
    assert group_name(WORKFLOW, "train", 0, 3) == f"fs-{WORKFLOW}-train-0-g3"
    assert member_host("worker", 3) == "worker-3"


@pytest.mark.parametrize(
    ("engine_name", "stem"),
    [
        ("fs-w1-Align_Reads-0-1", "fs-w1-align-reads-0-1-h"),
        ("fs-w1-align_reads-0-1", "fs-w1-align-reads-0-1-h"),
        ("fs-w1-align--reads_-0-1", "fs-w1-align-reads-0-1-h"),
        (f"fs-w1-{'s' * 63}-0-1", f"fs-w1-{'s' * 40}-h"),
        ("-", "x-h"),
        ("", "x-h"),
        ("ä/ö", "x-h"),
        ("a.b", "a-b-h"),
    ],
)
def test_a_name_that_had_to_change_is_marked(engine_name: str, stem: str) -> None:
    """Clean and short, and 15 letters and digits of its hash."""
    name = pod_name(engine_name)
    assert re.fullmatch(re.escape(stem) + "[a-z2-7]{15}", name)


def test_a_name_is_the_same_for_ever() -> None:
    """Pods outlive the service that named them: another release must find them again."""
    assert pod_name("fs-w1-Align-0-1") == "fs-w1-align-0-1-hlurbhoh4r5h6wi5"
    assert label_value("a b") == "a-b-hzbuhucfklvxnebc"


@given(texts)
def test_any_text_becomes_a_dns_label(text: str) -> None:
    """At most 63 characters, and it may be a host's name."""
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", dns_label(text))
    assert is_dns_subdomain(dns_label(text))


@given(texts)
def test_any_text_becomes_a_label_value(text: str) -> None:
    """At most 63 characters of those that labels may have."""
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", label_value(text))


@given(stages, stages, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 99), st.integers(1, 99))
def test_different_attempts_have_different_pods(a: str, b: str, i: int, j: int, m: int, n: int) -> None:
    """Whatever the stages are called."""
    one, other = f"fs-{WORKFLOW}-{a}-{i}-{m}", f"fs-{WORKFLOW}-{b}-{j}-{n}"
    assert (pod_name(one) == pod_name(other)) == (one == other)


@given(stages, st.integers(0, 10**6), st.integers(1, 99))
def test_a_name_never_looks_like_a_marked_one(stage: str, index: int, attempt: int) -> None:
    """A pod's own name ends in a number, a marked one in `-h` and letters: they cannot meet."""
    name = f"fs-{WORKFLOW}-{stage}-{index}-{attempt}"
    last = pod_name(name).rpartition("-")[2]
    assert last.isdigit() == (pod_name(name) == name)
    assert last.isdigit() or re.fullmatch("h[a-z2-7]{15}", last)


def test_stages_that_differ_in_case_have_different_groups() -> None:
    """Both are clean up to the hash."""
    upper, lower = group_name("w1", "Train", 0, 1), group_name("w1", "train", 0, 1)
    assert lower == "fs-w1-train-0-g1"
    assert upper.startswith("fs-w1-train-0-g1-h")


def test_a_member_is_found_by_dns() -> None:
    """Host, service, namespace, svc: with the cluster's search list from any namespace."""
    address = address_below(service_host("fs-w1-train-0-g1", "lab"))
    assert address(Member("worker", 1, 7)) == "worker-1.fs-w1-train-0-g1.lab.svc"
    assert re.fullmatch(
        r"my-role-2-h[a-z2-7]{15}\.s\.lab\.svc", address_below("s.lab.svc")(Member("My_Role", 2, 0))
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("", ""), ("align", "align"), ("Align_Reads.v2", "Align_Reads.v2"), ("7", "7"), ("x" * 63, "x" * 63)],
)
def test_label_values_that_stay(text: str, value: str) -> None:
    """Labels may have capitals, dots and underscores."""
    assert label_value(text) == value


@pytest.mark.parametrize("text", ["a b", "x" * 64, "-a", "a-", "_", "é", "a\n", "<script>"])
def test_label_values_that_change(text: str) -> None:
    """They are marked, so that two texts never share one value."""
    assert re.search("-h[a-z2-7]{15}$", label_value(text))


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("aws", SecretKey("aws", "value")),
        ("aws/secret-key", SecretKey("aws", "secret-key")),
        ("team.aws/KEY_1", SecretKey("team.aws", "KEY_1")),
        ("", None),
        ("/key", None),
        ("aws/", None),
        ("aws/..", None),
        ("aws/a/b", None),
        ("AWS", None),
        ("a_b", None),
        ("../x", None),
        ("aws\n", None),
        ("a" * 254, None),
    ],
)
def test_references_of_secrets(reference: str, found: SecretKey | None) -> None:
    """A name, or a name and a key; never a path."""
    assert secret_key(reference) == found
