"""The steps of `variant-calling.json`, one subcommand per stage, by the pysam wheel's samtools and bcftools.

A step takes its files from FLOWSCHED_INPUT_<NAME> and FLOWSCHED_OUTPUT_<NAME> and its shard's item (a lane
or a region) from FLOWSCHED_ITEM. Inputs may lie in a shared cache and are never written to: what a tool
wants to find beside a file (an index) is made in the working folder.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

try:
    from pysam import AlignmentFile, VariantFile, bcftools, samtools
except ImportError:
    sys.exit(f"{sys.executable} has no pysam: pip install 'flowsched[genomics]'")

SAMPLE = "NA18507"


def environment(name: str) -> str:
    """A variable that the service must have set."""
    try:
        return os.environ[name]
    except KeyError:
        sys.exit(f"{name} is not set: this program is a task of variant-calling.json")


def source(name: str) -> str:
    return environment(f"FLOWSCHED_INPUT_{name}")


def target(name: str) -> str:
    return environment(f"FLOWSCHED_OUTPUT_{name}")


def gathered(name: str) -> list[str]:
    """The paths in an input's manifest, in shard order."""
    return Path(source(name)).read_text().splitlines()


def beside(path: str, name: str) -> str:
    """Give an input a name of our own in the working folder, where indexes may be put beside it."""
    Path(name).symlink_to(path)
    return name


def genome() -> str:
    """The reference with its .fai, copied: faidx follows links and would write into the cache."""
    copy = shutil.copyfile(source("REFERENCE"), "genome.fa")
    samtools.faidx(copy)
    return copy


def split_lane() -> None:
    """Take one lane's reads: the machine is what stands before the first _ of a read's name.

    The example is SAM without a header, hence -t; later steps need read groups, hence addreplacerg.
    """
    lane = environment("FLOWSCHED_ITEM")
    of_lane = ("-t", f"{genome()}.fai", "-e", f'qname =~ "^{lane}_"')
    # pysam honours -o of `view` (and of mpileup, call, concat) only if it does not catch standard output.
    samtools.view("--no-PG", "-u", *of_lane, "-o", "raw.bam", source("READS"), catch_stdout=False)
    read_group = f"@RG\tID:{lane}\tSM:{SAMPLE}\tPU:{lane}\tPL:ILLUMINA"
    samtools.addreplacerg("--no-PG", "-r", read_group, "-O", "bam", "-o", target("LANE"), "raw.bam")


def sort_lane() -> None:
    """Complete the mates' fields, which needs the order of names, and leave the order of places."""
    samtools.sort("--no-PG", "-n", "-u", "-o", "named.bam", source("LANE"))
    samtools.fixmate("--no-PG", "-m", "-u", "named.bam", "mated.bam")
    samtools.sort("--no-PG", "-o", target("SORTED"), "mated.bam")


def merge_lanes() -> None:
    samtools.merge("--no-PG", "-o", target("MERGED"), *gathered("LANES"))


def mark_duplicates() -> None:
    """Mark copies of one molecule. A molecule's copies lie in several lanes, hence after the merge."""
    samtools.markdup("--no-PG", source("MERGED"), target("MARKED"))
    samtools.index("-o", target("INDEX"), target("MARKED"))


def call_region() -> None:
    """Call the variants whose first base lies in this shard's region."""
    reads = beside(source("MARKED"), "marked.bam")
    beside(source("INDEX"), "marked.bam.bai")
    of_region = ("-f", genome(), "-r", environment("FLOWSCHED_ITEM"))
    bcftools.mpileup("--no-version", "-Ou", *of_region, "-o", "pileup.bcf", reads, catch_stdout=False)
    bcftools.call("--no-version", "-mv", "-Ob", "-o", target("CALLS"), "pileup.bcf", catch_stdout=False)


def concat_regions() -> None:
    """Join the regions' calls in the order of the reference.

    bcftools accepts any order in silence, so the pieces are ordered here by their first record.
    """
    pieces = []
    for path in gathered("CALLS"):
        with VariantFile(path) as calls:
            first = next(calls, None)
            if first is not None:
                pieces.append((first.rid, first.pos, path))
    # Without any variant, one empty piece still gives a VCF with a header.
    ordered = [path for _, _, path in sorted(pieces)] or gathered("CALLS")[:1]
    bcftools.concat("--no-version", "-Ov", "-o", target("VARIANTS"), *ordered, catch_stdout=False)


def count() -> None:
    """Write bcftools' own statistics, and the few numbers worth showing."""
    Path(target("STATS")).write_text(bcftools.stats(source("VARIANTS")))
    with VariantFile(source("VARIANTS")) as variants:
        indel = ["INDEL" in record.info for record in variants]
    with AlignmentFile(source("MARKED")) as reads:
        duplicate = [read.is_duplicate for read in reads]
    summary = {
        "reads": len(duplicate),
        "duplicates": sum(duplicate),
        "variants": len(indel),
        "snps": indel.count(False),
        "indels": indel.count(True),
    }
    Path(target("SUMMARY")).write_text(json.dumps(summary) + "\n")


STEPS: dict[str, Callable[[], None]] = {
    "lane": split_lane,
    "sort": sort_lane,
    "merge": merge_lanes,
    "markdup": mark_duplicates,
    "call": call_region,
    "concat": concat_regions,
    "stats": count,
}

if __name__ == "__main__":
    STEPS[sys.argv[1]]()
