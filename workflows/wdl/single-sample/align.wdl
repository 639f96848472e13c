version 1.0

# Unmapped reads of one sample, read group by read group, to one recalibrated BAM.

import "structs.wdl"

workflow UnmappedToAligned {
  input {
    Sample sample
    Reference reference
    Int bwa_threads = 16
  }

  scatter (unmapped in sample.unmapped_bams) {
    String read_group = basename(unmapped, ".unmapped.bam")
    call BwaMem { input: unmapped_bam = unmapped, name = read_group, reference = reference, threads = bwa_threads }
  }

  call MarkDuplicates { input: bams = BwaMem.bam, name = sample.name }
  call SortSam { input: bam = MarkDuplicates.bam, name = sample.name }
  call CreateSequenceGroups { input: dict = reference.dict }

  scatter (group in CreateSequenceGroups.groups) {
    call BaseRecalibrator { input: bam = SortSam.sorted, group = group, reference = reference }
  }
  call GatherReports { input: reports = BaseRecalibrator.report }
  scatter (group in CreateSequenceGroups.groups) {
    call ApplyBqsr { input: bam = SortSam.sorted, report = GatherReports.report, group = group, reference = reference }
  }
  call GatherBams { input: bams = ApplyBqsr.part, name = sample.name }

  output {
    File bam = GatherBams.bam
    File bai = GatherBams.bai
  }
}

task BwaMem {
  input {
    File unmapped_bam
    String name
    Reference reference
    Int threads
  }
  command <<<
    set -o pipefail
    samtools fastq ~{unmapped_bam} | bwa mem -t ~{threads} -p ~{reference.fasta} - | samtools view -b -o ~{name}.bam -
  >>>
  runtime {
    docker: "us.gcr.io/broad-gotc-prod/samtools-picard-bwa:1.0.2-0.7.15-2.26.10-1643840748"
    cpu: threads
    memory: "14 GiB"
    disks: "local-disk " + (ceil(size(unmapped_bam, "GB") * 2.5) + 10) + " HDD"
  }
  output {
    File bam = "~{name}.bam"
  }
}

task MarkDuplicates {
  input {
    Array[File] bams
    String name
    Int additional_disk_gb = 20
  }
  Float total_gb = size(bams, "GB")
  Int memory_gb = if total_gb > 150.0 then 30 else 8
  command <<<
    gatk MarkDuplicates -I ~{sep=" -I " bams} -O ~{name}.marked.bam -M ~{name}.duplicates.txt
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    cpu: 2
    memory: "~{memory_gb} GiB"
    disks: "local-disk " + (ceil(total_gb * 3) + additional_disk_gb) + " HDD"
  }
  output {
    File bam = "~{name}.marked.bam"
  }
}

task SortSam {
  input {
    File bam
    String name
  }
  command <<<
    samtools sort -@ 4 -o ~{name}.sorted.bam ~{bam}
  >>>
  runtime {
    docker: "quay.io/biocontainers/samtools:1.19.2--h50ea8bc_0"
    cpu: 4
    memory: "16 GiB"
  }
  output {
    File sorted = "~{name}.sorted.bam"
  }
}

task CreateSequenceGroups {
  input {
    File dict
  }
  command <<<
    awk -F '\t' '/^@SQ/ { sub("SN:", "", $2); print $2 }' ~{dict} > groups.tsv
  >>>
  runtime {
    docker: "ubuntu:24.04"
    memory: "1 GiB"
  }
  output {
    Array[Array[String]] groups = read_tsv("groups.tsv")
  }
}

task BaseRecalibrator {
  input {
    File bam
    Array[String] group
    Reference reference
  }
  command <<<
    gatk BaseRecalibrator -R ~{reference.fasta} -I ~{bam} -L ~{sep=" -L " group} -O recalibration.csv
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "6 GiB"
  }
  output {
    File report = "recalibration.csv"
  }
}

task GatherReports {
  input {
    Array[File] reports
  }
  command <<<
    gatk GatherBQSRReports -I ~{sep=" -I " reports} -O recalibration.csv
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "3 GiB"
  }
  output {
    File report = "recalibration.csv"
  }
}

task ApplyBqsr {
  input {
    File bam
    File report
    Array[String] group
    Reference reference
  }
  command <<<
    gatk ApplyBQSR -R ~{reference.fasta} -I ~{bam} -L ~{sep=" -L " group} -bqsr ~{report} -O part.bam
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "3500 MiB"
  }
  output {
    File part = "part.bam"
  }
}

task GatherBams {
  input {
    Array[File] bams
    String name
  }
  command <<<
    gatk GatherBamFiles -I ~{sep=" -I " bams} -O ~{name}.bam --CREATE_INDEX true
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    memory: "3 GiB"
  }
  output {
    File bam = "~{name}.bam"
    File bai = "~{name}.bai"
  }
}
