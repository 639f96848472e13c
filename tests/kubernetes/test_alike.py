"""Pods that are alike: what is worked out once is what would be worked out for each."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_constraints import Kinds, rules_of, template_of
from flowsched.cluster.kubernetes.objects.pod_requests import DEFAULT_GPU
from flowsched.executor.constraints import (
    NodeTerm,
    Rules,
    narrowed,
    node_term,
    requirement,
    watched_by,
)
from flowsched.values import replace
from tests.kubernetes import random_pods

TERM = node_term([requirement("zone", "In", ("a",))])


def decoded(document: dict[str, Any]) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


def pod(**spec: Any) -> Pod:
    """A pod of one container."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": "p", "namespace": "n", "labels": spec.pop("labels", {})}
    status = spec.pop("status", {})
    return decoded({"metadata": metadata, "spec": {"containers": [container], **spec}, "status": status})


def test_each_pod_gets_what_it_would_get_alone() -> None:
    """A thousand random pods with rules of all sorts, each twice, in any order, as others look at more and more labels."""
    rng = random.Random(5)
    found = [decoded(random_pods.pod(rng, f"p{at}", ["n00", "n01"])) for at in range(1000)]
    kinds = Kinds(DEFAULT_GPU)
    met: list[Rules] = []
    for each in [*found, *rng.sample(found, len(found))]:
        volumes: tuple[tuple[NodeTerm, ...], ...] = rng.choice([(), ((TERM,),)])
        problem = rng.choice(["", "no volume"])
        kind = kinds.of(each)
        met.append(replace(rules_of(each), node_name=None))
        watched = watched_by(met)
        assert kinds.watched == watched
        alone = template_of(each, volumes, problem)
        wanted = replace(alone.rules or Rules(), node_name=None)
        template = kinds.template(kind, each.metadata.labels, volumes, problem)
        assert template == replace(alone, rules=narrowed(wanted, watched))
        assert kinds.rules(kind, each.metadata.labels) == narrowed(met[-1], watched)


def test_names_and_places_make_no_difference() -> None:
    """Neither its node nor its labels nor a volume with a name drawn by lot: one template serves all."""
    kinds = Kinds(DEFAULT_GPU)
    one = pod(labels={"hash": "a"}, volumes=[{"name": "kube-api-access-x7k2p", "projected": {}}])
    other = pod(labels={"hash": "b"}, nodeName="n1")
    assert kinds.of(one) is kinds.of(other)
    assert kinds.template(kinds.of(one), {"hash": "a"}) is kinds.template(kinds.of(other), {"hash": "b"})
    assert kinds.rules(kinds.of(one), {"hash": "a"}) is None


def test_what_is_resized_holds_the_most_of_both() -> None:
    """Its spec alone does not say what a pod holds."""
    kinds = Kinds(DEFAULT_GPU)
    held = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    assert kinds.of(pod()).template.resources.cpu_millicores == 1000
    assert kinds.of(pod(status=held)).template.resources.cpu_millicores == 3000
    assert kinds.of(pod()).template.resources.cpu_millicores == 1000


def test_a_new_look_at_labels_is_told_once() -> None:
    """From then on the labels make a difference."""
    kinds = Kinds(DEFAULT_GPU)
    plain = kinds.of(pod())
    assert not kinds.widened
    assert kinds.rules(plain, {"app": "web"}) is None
    away = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "host"}
    kinds.of(pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [away]}}))
    assert kinds.widened
    assert kinds.watched == {"app"}
    assert kinds.rules(plain, {"app": "web", "x": "y"}) == Rules("n", (("app", "web"),))
