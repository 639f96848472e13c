version 1.0

# A whole genome from unmapped reads to variants and metrics: sub-workflows, scatters whose width an earlier task decides, and a
# check that decides whether the sample is called at all.

import "align.wdl" as Align
import "calling.wdl" as Calling
import "structs.wdl"

workflow SingleSample {
  input {
    Sample sample
    Reference reference
    File calling_intervals
    Int haplotype_scatter_count = 50
    Float contamination_limit = 0.05
    Boolean collect_metrics = true
  }

  call Align.UnmappedToAligned as ToAligned {
    input: sample = sample, reference = reference
  }

  call CheckContamination {
    input: bam = ToAligned.bam, bai = ToAligned.bai, reference_fasta = reference.fasta
  }

  if (collect_metrics) {
    call CollectWgsMetrics { input: bam = ToAligned.bam, reference_fasta = reference.fasta }
  }

  if (CheckContamination.contamination <= contamination_limit) {
    call Calling.ScatteredCalling as ToVariants {
      input:
        bam = ToAligned.bam,
        bai = ToAligned.bai,
        reference = reference,
        intervals = calling_intervals,
        scatter_count = haplotype_scatter_count,
        output_name = sample.name
    }
    call ValidateVcf { input: vcf = ToVariants.vcf }
  }

  output {
    File bam = ToAligned.bam
    File? vcf = ToVariants.vcf
    File? metrics = CollectWgsMetrics.metrics
    Float contamination = CheckContamination.contamination
  }
}

task CheckContamination {
  input {
    File bam
    File bai
    File reference_fasta
  }
  command <<<
    verifybamid2 --BamFile ~{bam} --Reference ~{reference_fasta} --Output contamination
    awk 'NR == 2 { print $7 }' contamination.selfSM > contamination.txt
  >>>
  runtime {
    docker: "us.gcr.io/broad-gotc-prod/verify-bam-id:1.0.1"
    cpu: 2
    memory: "7.5 GiB"
    disks: "local-disk " + (ceil(size(bam, "GB")) + 30) + " HDD"
  }
  output {
    Float contamination = read_float("contamination.txt")
  }
}

task CollectWgsMetrics {
  input {
    File bam
    File reference_fasta
  }
  command <<<
    picard CollectWgsMetrics -I ~{bam} -R ~{reference_fasta} -O wgs_metrics.txt
  >>>
  runtime {
    docker: "us.gcr.io/broad-gotc-prod/picard-cloud:2.26.10"
    memory: "3 GiB"
  }
  output {
    File metrics = "wgs_metrics.txt"
  }
}

task ValidateVcf {
  input {
    File vcf
  }
  command <<<
    gatk ValidateVariants -V ~{vcf}
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "7 GiB"
  }
  output {
    Boolean ok = true
  }
}
