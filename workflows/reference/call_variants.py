"""Variant calling in one straight line: what `variant-calling.json` must agree with, without a scheduler.

No lanes, no windows, no merge: all reads are taken at once, by the same samtools and bcftools. What the
scattered workflow finds can therefore differ from this only if splitting or joining lost, doubled or
reordered something.

    python call_variants.py READS.sam.gz REFERENCE.fa VARIANTS.vcf
"""

import shutil
import sys
import tempfile
from pathlib import Path

from pysam import bcftools, samtools

READ_GROUP = "@RG\tID:all\tSM:NA18507\tPL:ILLUMINA"


def call_variants(reads: Path, reference: Path, variants: Path) -> None:
    """Write the variants of all reads to `variants`, as uncompressed VCF."""
    with tempfile.TemporaryDirectory() as folder:
        # The index is written next to the reference, so a copy of it is indexed.
        genome = shutil.copy(reference, f"{folder}/genome.fa")
        samtools.faidx(genome)

        def step(name: str) -> str:
            return f"{folder}/{name}"

        # pysam honours -o of some commands only if it does not catch their standard output.
        header = ("-t", f"{genome}.fai")
        samtools.view("--no-PG", "-b", *header, "-o", step("raw.bam"), str(reads), catch_stdout=False)
        samtools.addreplacerg("--no-PG", "-r", READ_GROUP, "-o", step("grouped.bam"), step("raw.bam"))
        samtools.sort("--no-PG", "-n", "-o", step("named.bam"), step("grouped.bam"))
        samtools.fixmate("--no-PG", "-m", step("named.bam"), step("mated.bam"))
        samtools.sort("--no-PG", "-o", step("sorted.bam"), step("mated.bam"))
        samtools.markdup("--no-PG", step("sorted.bam"), step("marked.bam"))
        samtools.index(step("marked.bam"))
        pileup = ("-f", genome, "-o", step("pileup.bcf"))
        bcftools.mpileup("--no-version", "-Ou", *pileup, step("marked.bam"), catch_stdout=False)
        calls = ("-o", str(variants))
        bcftools.call("--no-version", "-mv", "-Ov", *calls, step("pileup.bcf"), catch_stdout=False)


if __name__ == "__main__":
    call_variants(*map(Path, sys.argv[1:4]))
