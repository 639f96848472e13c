"""The scattered variant calling finds what one plain script finds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from document_runner import WORKFLOWS, run_document, run_task, stages_of, task_environment

pysam = pytest.importorskip("pysam", reason="needs the extra: pip install 'flowsched[genomics]'")
bcftools = pytest.importorskip("pysam.bcftools")
samtools = pytest.importorskip("pysam.samtools")

EX1 = WORKFLOWS / "data" / "ex1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """All outputs of one run."""
    return run_document("variant-calling.json", tmp_path_factory.mktemp("variant-calling"))


def records(vcf: Path) -> list[str]:
    return [line for line in vcf.read_text().splitlines() if not line.startswith("#")]


def duplicates(bam: Path) -> int:
    with pysam.AlignmentFile(str(bam)) as reads:
        return sum(read.is_duplicate for read in reads)


def test_it_agrees_record_by_record_with_a_plain_script(made: dict[str, list[Path]], tmp_path: Path) -> None:
    """Same places, alleles, qualities, annotations and genotypes, to the last digit."""
    plain = tmp_path / "plain.vcf"
    script = WORKFLOWS / "reference" / "call_variants.py"
    subprocess.run(
        [sys.executable, script, EX1 / "ex1.sam.gz", EX1 / "ex1.fa", plain], check=True, timeout=300
    )
    (scattered,) = made["concat.variants"]
    assert records(scattered) == records(plain)
    assert [record.split("\t")[:5] for record in records(scattered)] == [
        ["seq1", "288", ".", "A", "ACATAG"],
        ["seq1", "548", ".", "C", "A"],
        ["seq1", "1294", ".", "A", "G"],
        ["seq2", "156", ".", "AA", "AAGA"],
        ["seq2", "505", ".", "A", "G"],
        ["seq2", "784", ".", "CAATT", "CAATTAATT"],
        ["seq2", "1344", ".", "A", "C"],
    ]


def test_the_summary_counts_reads_duplicates_snps_and_indels(made: dict[str, list[Path]]) -> None:
    """The numbers that the service shows."""
    (summary,) = made["stats.summary"]
    assert json.loads(summary.read_text()) == {
        "reads": 3307,
        "duplicates": 53,
        "variants": 7,
        "snps": 4,
        "indels": 3,
    }


def test_most_duplicates_lie_in_different_lanes(made: dict[str, list[Path]], tmp_path: Path) -> None:
    """Marked lane by lane there are 6, after the merge 53: the merge must come first."""
    assert len(made["sort.sorted"]) == 14
    marked = [tmp_path / f"{index}.bam" for index in range(14)]
    for lane, path in zip(made["sort.sorted"], marked, strict=True):
        samtools.markdup(str(lane), str(path))
    assert sum(map(duplicates, marked)) == 6
    assert duplicates(made["markdup.marked"][0]) == 53


def test_every_read_is_in_the_lane_of_its_machine(made: dict[str, list[Path]]) -> None:
    """EAS1 is not EAS112, and no read is lost."""
    sizes = {}
    for path in made["lane.lane"]:
        with pysam.AlignmentFile(str(path), check_sq=False) as reads:
            (lane,) = [group["ID"] for group in reads.header["RG"]]
            names = [read.query_name.partition("_")[0] for read in reads]
            assert set(names) == {lane}
            sizes[lane] = len(names)
    assert sum(sizes.values()) == 3307
    assert (sizes["B7"], sizes["EAS1"], sizes["EAS112"]) == (467, 505, 61)


def test_regions_are_joined_in_the_order_of_the_reference(
    made: dict[str, list[Path]], tmp_path: Path
) -> None:
    """Bcftools joins in any order without a word; the step does not."""
    concat = next(stage for stage in stages_of("variant-calling.json") if stage["name"] == "concat")
    backwards = {"call.calls": made["call.calls"][::-1]}
    run_task(concat, task_environment(concat, 0, [None], backwards, tmp_path / "concat"))
    (forwards,) = made["concat.variants"]
    assert records(tmp_path / "concat" / "NA18507.vcf") == records(forwards)


def test_regions_without_any_variant_give_a_vcf_without_records(
    made: dict[str, list[Path]], tmp_path: Path
) -> None:
    """A header remains."""
    concat = next(stage for stage in stages_of("variant-calling.json") if stage["name"] == "concat")
    empty = tmp_path / "empty.bcf"
    bcftools.view("-Ob", "-i", "0", "-o", str(empty), str(made["call.calls"][0]), catch_stdout=False)
    pieces = {"call.calls": [empty, shutil.copy(empty, tmp_path / "another.bcf")]}
    run_task(concat, task_environment(concat, 0, [None], pieces, tmp_path / "concat"))
    text = (tmp_path / "concat" / "NA18507.vcf").read_text()
    assert text.startswith("##fileformat=VCF")
    assert records(tmp_path / "concat" / "NA18507.vcf") == []


def test_no_input_is_written_to(made: dict[str, list[Path]]) -> None:
    """Indexes go to the working folder, as an input may be shared."""
    assert sorted(path.name for path in EX1.iterdir()) == ["00README.txt", "LICENSE", "ex1.fa", "ex1.sam.gz"]
    assert [path.name for path in made["markdup.marked"][0].parent.glob("*.bai")] == ["marked.bam.bai"]
