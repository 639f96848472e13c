"""ResourceQuotas: what the server refuses by their status, and the controller that counts. As measured on 1.36.

The server enforces the status alone: without a controller that has written `hard` there, nothing is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from flowsched.cluster.kubernetes.objects.metadata import quantity
from tests.kubernetes.fake.replies import refusal
from tests.kubernetes.fake.store import Document, Entry, Store
from tests.kubernetes.hollow import spec
from tests.kubernetes.hollow.admission import requested

#: What this controller counts: a word of a quota, and the scale of its amounts.
WORDS = {"pods": 1, "requests.cpu": 1000, "cpu": 1000, "requests.memory": 1, "memory": 1}
#: How long the controller takes to see a pod's end.
COUNT_S = 0.05


def admit(store: Store, pod: Document) -> None:
    """Count a new pod for the quotas of its namespace.

    Raises:
        Refusal: A quota has no room for it.
    """
    asked = _asked(pod)
    found = _quotas(store, pod["metadata"]["namespace"])
    for entry in found:
        quota = entry.document()
        status = quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        over = [
            word
            for word in sorted(hard.keys() & WORDS.keys())
            if quantity(used.get(word, "0"), WORDS[word]) + asked[word] > quantity(hard[word], WORDS[word])
        ]
        if over:
            name, said = pod["metadata"]["name"], [f"{word}={_text(word, asked[word])}" for word in over]
            taken = ",".join(f"{word}={used.get(word, '0')}" for word in over)
            most = ",".join(f"{word}={hard[word]}" for word in over)
            why = (
                f"exceeded quota: {entry.key[1]}, requested: {','.join(said)}, used: {taken}, limited: {most}"
            )
            raise refusal(403, f'pods "{name}" is forbidden: {why}', details={"name": name, "kind": "pods"})
    for entry in found:
        quota = entry.document()
        used = quota.get("status", {}).get("used", {})
        for word in used:
            used[word] = _text(word, quantity(used[word], WORDS[word]) + asked[word])
        store.put_if_changed(store.kinds["", "v1", "resourcequotas"], quota, entry)


@contextlib.asynccontextmanager
async def counting(store: Store) -> AsyncIterator[None]:
    """The quota controller, as long as this lasts."""

    async def count() -> None:
        while True:
            for entry in store.collection(store.kinds["", "v1", "resourcequotas"]).sorted_entries():
                _count(store, entry)
            await asyncio.sleep(COUNT_S)

    controller = asyncio.create_task(count())
    try:
        yield
    finally:
        controller.cancel()
        await asyncio.wait({controller})


def _count(store: Store, entry: Entry) -> None:
    quota = entry.document()
    hard = quota["spec"].get("hard", {})
    total = dict.fromkeys(WORDS, 0)
    for pod in store.collection(store.kinds["", "v1", "pods"]).sorted_entries():
        document = pod.document()
        if pod.key[0] == entry.key[0] and document["status"].get("phase") not in ("Succeeded", "Failed"):
            for word, amount in _asked(document).items():
                total[word] += amount
    used = {word: _text(word, total[word]) for word in hard if word in WORDS}
    quota["status"] = {"hard": hard, "used": used}
    store.put_if_changed(store.kinds["", "v1", "resourcequotas"], quota, entry)


def _quotas(store: Store, namespace: str) -> list[Entry]:
    every = store.collection(store.kinds["", "v1", "resourcequotas"]).sorted_entries()
    return [entry for entry in every if entry.key[0] == namespace]


def _asked(pod: Document) -> dict[str, int]:
    asks = requested(msgspec.convert(pod, spec.Pod, strict=False))
    cpu, memory = asks.get("cpu", 0), asks.get("memory", 0)
    return {"pods": 1, "requests.cpu": cpu, "cpu": cpu, "requests.memory": memory, "memory": memory}


def _text(word: str, amount: int) -> str:
    return f"{amount}m" if WORDS[word] == 1000 and amount % 1000 else str(amount // WORDS[word])
