"""The goals that `locality.py` is held against, and the columns that its opponents should meet (written down, not computed)."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

IO_BOUND = (
    "blast-small", "blast-large", "srasearch-20a", "srasearch-50a", "1000genome-4ch", "1000genome-22ch",
    "epigenomics-1seq", "epigenomics-6seq",
)  # fmt: skip
PATH_BOUND = ("sarek", "mag", "smrnaseq", "soykb")
DEV = (*IO_BOUND, *PATH_BOUND)
WOWS = ("all-in-one", "chain", "group", "syn-bwa", "syn-genome", "rnaseq-real")

#: Makespan ÷ bound that another simulator gave: (1 Gbit/s, 10 Gbit/s) by opponent and instance. None = not told one by one.
COLUMNS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "kube-like": {
        "blast-small": (6.68, 3.35), "blast-large": (1.17, 1.02), "srasearch-20a": (3.28, 1.11), "srasearch-50a": (5.03, 1.23),
        "1000genome-4ch": (3.44, 1.42), "1000genome-22ch": (5.91, 1.53), "epigenomics-1seq": (1.14, 1.01),
        "epigenomics-6seq": (1.57, 1.38),
    },
    "heft": {
        "blast-small": (3.44, 2.01), "blast-large": (1.14, 1.02), "srasearch-20a": (1.0, 1.02), "srasearch-50a": (1.0, 1.02),
        "1000genome-4ch": (2.84, 1.24), "1000genome-22ch": (3.62, 1.49), "epigenomics-1seq": (1.01, 1.01),
        "epigenomics-6seq": (1.35, 1.29),
    },
    "wow": {
        "blast-small": (6.68, 3.35), "blast-large": (1.17, 1.02), "srasearch-20a": (1.0, 1.02), "srasearch-50a": (1.0, 1.02),
        "1000genome-4ch": (3.42, 1.44), "1000genome-22ch": (5.92, 1.54), "epigenomics-1seq": (1.04, 1.01),
        "epigenomics-6seq": (1.44, 1.40),
    },
}  # fmt: skip
MEANS = {"kube-like": (2.03, 1.25), "heft": (1.40, 1.15), "wow": (1.58, 1.22)}
#: The same for rnaseq-real on 8x32-1g and 8x32-10g; and for eleven at once on 8x16-1g, with the mean completion in seconds.
RNASEQ = {"kube-like": (4.10, 1.43), "heft": (1.84, 1.22), "wow": (2.06, 1.26)}
TOGETHER = {"kube-like": (3.44, 6641.0), "heft": (2.34, 4127.0), "wow": (3.28, 5240.0)}
#: Rows of the published table of makespans.
PUBLISHED = {
    "all-in-one": "All in One", "chain": "Chain", "group": "Group", "syn-bwa": "Syn. BWA", "syn-genome": "Syn. Genome",
    "rnaseq-real": "RNA-Seq",
}  # fmt: skip

Figures = Mapping[tuple[str, str, str], Mapping[str, Any]]


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """(cluster, instance, policy) -> what the referee said, of accepted traces with estimates as they are."""
    return {
        (row["case"].cluster, row["case"].names, row["case"].policy): row
        for row in rows
        if not row["faults"] and not row["case"].error
    }


def print_goals(rows: Sequence[Mapping[str, Any]]) -> None:
    """Each goal that the figures suffice for: what it is, must, stretch, met or not."""
    found = figures(rows)
    print("\ngoals")
    for name, measure, must, stretch in GOALS:
        try:
            value = measure(found)
        except KeyError:
            continue
        verdict = "stretch" if value <= stretch else "must" if value <= must else "NOT MET"
        print(f"  {name:66} {value:9.3f}   must {must:g}, stretch {stretch:g}: {verdict}")


def _ratio(cluster: str, names: Sequence[str]) -> Callable[[Figures], float]:
    return lambda found: mean([found[cluster, name, "flowsched"]["ratio"] for name in names])


def _against(
    other: str, cluster: str, names: Sequence[str], of: Callable[[list[float]], float]
) -> Callable[[Figures], float]:
    return lambda found: of(
        [
            found[cluster, name, "flowsched"]["makespan_s"] / found[cluster, name, other]["makespan_s"]
            for name in names
        ]
    )


def _minutes(cluster: str) -> Callable[[Figures], float]:
    return lambda found: found[cluster, "rnaseq-real", "flowsched"]["makespan_s"] / 60


def _together(key: str, scale: float = 1.0) -> Callable[[Figures], float]:
    def measure(found: Figures) -> float:
        rows = [row for (_, name, policy), row in found.items() if "+" in name and policy == "flowsched"]
        if not rows:
            raise KeyError(key)
        return float(rows[0][key]) / scale

    return measure


GOALS: Sequence[tuple[str, Callable[[Figures], float], float, float]] = (
    ("G1  geo-mean makespan ÷ bound, 8x16-1g", _ratio("8x16-1g", DEV), 1.15, 1.10),
    ("G2  the same, 8x16-10g", _ratio("8x16-10g", DEV), 1.12, 1.08),
    ("G3  the eight that are bound by IO, 8x16-1g", _ratio("8x16-1g", IO_BOUND), 1.20, 1.15),
    ("G5  against WOW on its workloads, 8x32-1g", _against("wow", "8x32-1g", WOWS, mean), 0.70, 0.60),
    ("G5  worst of them", _against("wow", "8x32-1g", WOWS, max), 1.05, 1.05),
    (
        "G5  against WOW on its workloads, 8x32-1g-ceph",
        _against("wow", "8x32-1g-ceph", WOWS, mean),
        0.75,
        0.60,
    ),
    ("G5  worst of them", _against("wow", "8x32-1g-ceph", WOWS, max), 1.05, 1.05),
    ("G6  against WOW on its workloads, 8x32-10g", _against("wow", "8x32-10g", WOWS, mean), 0.90, 0.80),
    ("G6  worst of them", _against("wow", "8x32-10g", WOWS, max), 1.05, 1.05),
    ("G7  rnaseq-real on 8x32-1g, minutes", _minutes("8x32-1g"), 108, 95),
    ("G7  rnaseq-real on 8x32-1g-ceph, minutes", _minutes("8x32-1g-ceph"), 96, 90),
    ("G8  eleven at once: makespan ÷ bound", _together("ratio"), 1.25, 1.15),
    ("G8  eleven at once: mean completion, s", _together("mean_completion_s"), 1500, 1100),
    ("G9  eleven at once: GB from shared storage", _together("from_storage_bytes", 1e9), 160, 120),
    *(
        (
            f"G10 do no harm: {name} against heft, {cluster}",
            _against("heft", cluster, (name,), max),
            1.03,
            1.01,
        )
        for cluster in ("8x16-1g", "8x16-10g")
        for name in PATH_BOUND
    ),
)


def print_validation(rows: Sequence[Mapping[str, Any]], data: Path) -> None:
    """How far the opponents are from their columns, and WOW from its published cuts. Above 0: weaker than there."""
    found = figures(rows)
    print(
        "\nopponents against their columns (makespan ÷ bound; above 0 % = ours is weaker, in flowsched's favour)"
    )
    for policy, column in COLUMNS.items():
        for at, cluster in enumerate(("8x16-1g", "8x16-10g")):
            for name in column:
                if (cluster, name, policy) in found:
                    print_deviation(
                        f"{policy:10} {name:17} {cluster}",
                        found[cluster, name, policy]["ratio"],
                        column[name][at],
                    )
            if all((cluster, name, policy) in found for name in DEV):
                ratio = mean([found[cluster, name, policy]["ratio"] for name in DEV])
                print_deviation(f"{policy:10} {'geometric mean':17} {cluster}", ratio, MEANS[policy][at])
    for (cluster, name, policy), row in found.items():
        if name == "rnaseq-real" and policy in RNASEQ and cluster in ("8x32-1g", "8x32-10g"):
            print_deviation(
                f"{policy:10} {name:17} {cluster}", row["ratio"], RNASEQ[policy][cluster == "8x32-10g"]
            )
        if "+" in name and policy in TOGETHER:
            ratio, seconds = TOGETHER[policy]
            print_deviation(f"{policy:10} {'eleven at once':17} {cluster}", row["ratio"], ratio)
            print_deviation(
                f"{policy:10} {'mean completion':17} {cluster}", row["mean_completion_s"], seconds
            )
    with (data / "wow" / "published_results1Gbit.csv").open() as file:
        head, *lines = csv.reader(file, delimiter=";")
    published = {line[0]: line for line in lines}
    print(
        "\nWOW's makespan against the stock way (percent; published beside it; minutes, published in brackets)"
    )
    for cluster, storage in (("8x32-1g", "NFS"), ("8x32-1g-ceph", "Ceph")):
        for name, row in PUBLISHED.items():
            if (cluster, name, "wow") in found and (cluster, name, "kube-like") in found:
                stock = found[cluster, name, "kube-like"]["makespan_s"] / 60
                wow = found[cluster, name, "wow"]["makespan_s"] / 60
                ours = 100 * (wow / stock - 1)
                # The table repeats its column names; the first of a name is the makespan's.
                told = float(published[row][head.index(f"Improvement over Orig (WOW {storage})")])
                minutes = float(published[row][head.index(f"Makespan in m (Orig {storage})")])
                print(
                    f"  {name:14} {storage:5} {ours:7.1f}  published {told:7.1f}  difference {ours - told:+6.1f} points"
                    f"   minutes: stock {stock:6.1f} ({minutes:6.1f}), WOW {wow:6.1f} ({minutes * (1 + told / 100):6.1f})"
                )


def print_deviation(label: str, ours: float, told: float) -> None:
    """One line."""
    off = 100 * (ours / told - 1)
    print(
        f"  {label:45} {ours:8.3f}  column {told:7.2f}  {off:+6.1f} %{'' if abs(off) <= 5 else '   <-- more than 5 %'}"
    )
