"""The plans of the workflows in `workflows/wdl`, written out."""

from __future__ import annotations

from flowsched.workflow.formats.wdl.plan import plan_wdl
from flowsched.workflow.formats.wdl.sources import sources

from .wdl_cases import WDLS, edges, example, inputs_of, nodes, told


def test_intervals_of_the_inputs_make_a_known_width() -> None:
    """Four intervals are four tasks; a CRAM is converted first; and the memory that the inputs give is taken."""
    plan = example("haplotype-caller")
    assert edges(plan) == [
        ("CramToBam", "HaplotypeCaller", "data"),
        ("HaplotypeCaller", "MergeGvcfs", "data"),
    ]
    found = nodes(plan)
    assert {name: (n.tasks, n.runs, n.gang_width) for name, n in found.items()} == {
        "CramToBam": (1, "yes", 1),
        "HaplotypeCaller": (4, "yes", 4),
        "MergeGvcfs": (1, "yes", 1),
    }
    caller = found["HaplotypeCaller"]
    assert (caller.cpu.value, caller.memory.value, caller.gpu.value) == (2000, 8 * 1024**3, 0)
    assert caller.image.value == "broadinstitute/gatk:4.5.0.0"
    assert caller.disk.value is None
    assert told(caller.disk.until) == [
        ("node", "HaplotypeCallerGvcf.CramToBam"),
        ("size", "s3://references/hg38/Homo_sapiens_assembly38.fasta"),
    ]
    assert [(file.input, file.uri) for file in caller.files if file.input == "interval"] == [
        ("interval", "s3://references/hg38/scattered/0000.interval_list"),
        ("interval", "s3://references/hg38/scattered/0001.interval_list"),
        ("interval", "s3://references/hg38/scattered/0002.interval_list"),
        ("interval", "s3://references/hg38/scattered/0003.interval_list"),
    ]
    assert [(each.holds, each.text) for each in plan.conditions] == [("yes", "is_cram")]


def test_a_bam_needs_no_conversion_and_its_size_gives_the_disk() -> None:
    """The condition follows from the name of the input: the call does not run, and nobody waits for it."""
    inputs = inputs_of("haplotype-caller") | {"HaplotypeCallerGvcf.input_bam": "/data/a.bam"}
    sizes = {
        "/data/a.bam": 90_000_000_000,
        "s3://references/hg38/Homo_sapiens_assembly38.fasta": 3_000_000_000,
    }
    plan = plan_wdl(sources((WDLS / "haplotype-caller.wdl").read_text()), inputs, sizes=sizes)
    found = nodes(plan)
    assert found["CramToBam"].runs == "no"
    assert edges(plan) == [("HaplotypeCaller", "MergeGvcfs", "data")]
    assert found["HaplotypeCaller"].disk.value == 53 * 1024**3  # ceil((90 + 30) / 4 + 3) + 20


def test_widths_of_upstream_outputs_are_labelled() -> None:
    """A whole genome in two sub-workflows: what nobody can know yet says whose end it waits for."""
    plan = example("single-sample/single-sample")
    found = nodes(plan)
    groups = [("node", "SingleSample.ToAligned.CreateSequenceGroups")]
    check = ("node", "SingleSample.CheckContamination")
    assert {name: (n.level, n.tasks, n.runs, told(n.until)) for name, n in found.items()} == {
        "ToAligned.BwaMem": (0, 3, "yes", []),
        "ToAligned.CreateSequenceGroups": (0, 1, "yes", []),
        "ToAligned.MarkDuplicates": (1, 1, "yes", []),
        "ToAligned.SortSam": (2, 1, "yes", []),
        "ToAligned.BaseRecalibrator": (3, None, "yes", groups),
        "ToAligned.GatherReports": (4, 1, "yes", []),
        "ToAligned.ApplyBqsr": (5, None, "yes", groups),
        "ToAligned.GatherBams": (6, 1, "yes", []),
        "CheckContamination": (7, 1, "yes", []),
        "CollectWgsMetrics": (7, 1, "yes", []),
        "ToVariants.CutIntervals": (8, 1, "unknown", [check]),
        "ToVariants.CallPiece": (
            9,
            None,
            "unknown",
            [check, ("node", "SingleSample.ToVariants.CutIntervals")],
        ),
        "ToVariants.ReblockGvcf": (
            10,
            None,
            "unknown",
            [check, ("node", "SingleSample.ToVariants.CutIntervals")],
        ),
        "ToVariants.MergeVcfs": (11, 1, "unknown", [check]),
        "ValidateVcf": (12, 1, "unknown", [check]),
    }
    assert [n.gang_width for n in found.values() if n.tasks is None or n.runs != "yes"] == [None] * 7


def test_edges_of_sub_workflows_lead_from_call_to_call() -> None:
    """Data goes straight from the task that wrote it; what the condition and the sub-workflow hold back is an edge of order."""
    plan = example("single-sample/single-sample")
    assert sorted(edges(plan)) == [
        ("CheckContamination", "ToVariants.CutIntervals", "order"),
        ("ToAligned.ApplyBqsr", "ToAligned.GatherBams", "data"),
        ("ToAligned.BaseRecalibrator", "ToAligned.GatherReports", "data"),
        ("ToAligned.BwaMem", "ToAligned.MarkDuplicates", "data"),
        ("ToAligned.CreateSequenceGroups", "ToAligned.ApplyBqsr", "data"),
        ("ToAligned.CreateSequenceGroups", "ToAligned.BaseRecalibrator", "data"),
        ("ToAligned.GatherBams", "CheckContamination", "data"),
        ("ToAligned.GatherBams", "CollectWgsMetrics", "data"),
        ("ToAligned.GatherBams", "ToVariants.CallPiece", "data"),
        ("ToAligned.GatherReports", "ToAligned.ApplyBqsr", "data"),
        ("ToAligned.MarkDuplicates", "ToAligned.SortSam", "data"),
        ("ToAligned.SortSam", "ToAligned.ApplyBqsr", "data"),
        ("ToAligned.SortSam", "ToAligned.BaseRecalibrator", "data"),
        ("ToVariants.CallPiece", "ToVariants.ReblockGvcf", "data"),
        ("ToVariants.CutIntervals", "ToVariants.CallPiece", "data"),
        ("ToVariants.MergeVcfs", "ValidateVcf", "data"),
        ("ToVariants.ReblockGvcf", "ToVariants.MergeVcfs", "data"),
    ]


def test_struct_members_are_known_one_by_one() -> None:
    """CPU comes from a default of the sub-workflow, files from members of structs; memory that hangs on sizes says so."""
    found = nodes(example("single-sample/single-sample"))
    bwa = found["ToAligned.BwaMem"]
    assert bwa.cpu.value == 16_000
    assert [file.uri.rpartition("/")[2] for file in bwa.files if file.input == "unmapped_bam"] == [
        "H06HDADXX130110.1.unmapped.bam",
        "H06HDADXX130110.2.unmapped.bam",
        "H06JUADXX130110.1.unmapped.bam",
    ]
    assert [file.uri.rpartition("/")[2] for file in bwa.files if file.input == "reference"] == [
        "Homo_sapiens_assembly38.fasta",
        "Homo_sapiens_assembly38.fasta.fai",
        "Homo_sapiens_assembly38.dict",
    ]
    marked = found["ToAligned.MarkDuplicates"]
    assert marked.memory.value is None
    assert told(marked.memory.until) == [("node", "SingleSample.ToAligned.BwaMem")]
    assert marked.memory.text == '"~{memory_gb} GiB"'


def test_nested_scatters_are_counted_where_their_widths_differ() -> None:
    """Chunks are 2 + 3 + 3 over three contigs; one contig of three is chrX; five samples in pairs are three batches."""
    plan = example("joint-imputation")
    found = nodes(plan)
    assert {name: (n.tasks, n.runs) for name, n in found.items()} == {
        "CheckBatch": (3, "yes"),
        "GenotypeContig": (3, "yes"),
        "SplitByPloidy": (1, "yes"),
        "PhaseChunk": (8, "yes"),
        "ImputeChunk": (8, "yes"),
        "RareVariants": (8, "no"),
        "LigateChunks": (3, "yes"),
        "GatherCohort": (1, "yes"),
    }
    assert [(s.variable, s.width, s.total) for s in plan.scatters] == [
        ("batch", 3, 3),
        ("panel", 3, 3),
        ("chunk", None, 8),
    ]
    assert sorted((c.text, c.holds, c.shards) for c in plan.conditions) == [
        ("impute", "yes", None),
        ('panel.contig == "chrX"', "some", 1),
        ("rare_variants", "no", None),
    ]
    assert found["GenotypeContig"].memory.value == 18 * 1024**3  # 8 + 2 for each of five samples
    assert (found["ImputeChunk"].cpu.value, found["ImputeChunk"].gpu.value) == (4000, 0)


def test_without_imputation_its_calls_do_not_run() -> None:
    """And the cohort is gathered from what was genotyped."""
    inputs = inputs_of("joint-imputation") | {"JointImputation.impute": False}
    plan = plan_wdl(sources((WDLS / "joint-imputation.wdl").read_text()), inputs)
    left_out = {name for name, node in nodes(plan).items() if node.runs == "no"}
    assert left_out == {"PhaseChunk", "ImputeChunk", "LigateChunks", "RareVariants"}
    assert ("LigateChunks", "GatherCohort", "data") not in edges(plan)
    assert ("GenotypeContig", "GatherCohort", "data") in edges(plan)
