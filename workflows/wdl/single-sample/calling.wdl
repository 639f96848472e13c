version 1.0

# Variants of one sample: the intervals are cut into pieces of equal work by a task, so their number is its output.

import "structs.wdl"

workflow ScatteredCalling {
  input {
    File bam
    File bai
    Reference reference
    File intervals
    Int scatter_count
    String output_name
  }

  call CutIntervals { input: intervals = intervals, scatter_count = scatter_count }

  scatter (piece in CutIntervals.pieces) {
    call CallPiece { input: bam = bam, bai = bai, reference = reference, interval = piece }
    call ReblockGvcf { input: gvcf = CallPiece.gvcf }
  }

  call MergeVcfs { input: vcfs = ReblockGvcf.reblocked, name = output_name }

  output {
    File vcf = MergeVcfs.vcf
  }
}

task CutIntervals {
  input {
    File intervals
    Int scatter_count
  }
  command <<<
    mkdir out
    picard IntervalListTools -I ~{intervals} -O out --SCATTER_COUNT ~{scatter_count}
  >>>
  runtime {
    docker: "us.gcr.io/broad-gotc-prod/picard-python:1.0.0-2.26.10-1663951039"
    memory: "2 GiB"
  }
  output {
    Array[File] pieces = glob("out/*/*.interval_list")
  }
}

task CallPiece {
  input {
    File bam
    File bai
    Reference reference
    File interval
  }
  command <<<
    gatk HaplotypeCaller -R ~{reference.fasta} -I ~{bam} -L ~{interval} -O piece.g.vcf.gz -ERC GVCF
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    cpu: 2
    memory: "7 GiB"
  }
  output {
    File gvcf = "piece.g.vcf.gz"
  }
}

task ReblockGvcf {
  input {
    File gvcf
  }
  command <<<
    gatk ReblockGVCF -V ~{gvcf} -O reblocked.g.vcf.gz
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "3.75 GiB"
  }
  output {
    File reblocked = "reblocked.g.vcf.gz"
  }
}

task MergeVcfs {
  input {
    Array[File] vcfs
    String name
  }
  command <<<
    picard MergeVcfs -I ~{sep=" -I " vcfs} -O ~{name}.g.vcf.gz
  >>>
  runtime {
    docker: "us.gcr.io/broad-gotc-prod/picard-cloud:2.26.10"
    memory: "3 GiB"
  }
  output {
    File vcf = "~{name}.g.vcf.gz"
  }
}
