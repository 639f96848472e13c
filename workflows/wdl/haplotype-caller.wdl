version 1.0

# Germline variants of one sample, as the GATK best practices do it: an optional CRAM is converted, the genome is cut into
# intervals that are given, each is called by itself, and the calls are merged.

workflow HaplotypeCallerGvcf {
  input {
    File input_bam
    File input_bam_index
    File ref_dict
    File ref_fasta
    File ref_fasta_index
    Array[File]+ intervals
    Boolean make_gvcf = true
    String gatk_image = "broadinstitute/gatk:4.5.0.0"
    String samtools_image = "quay.io/biocontainers/samtools:1.19.2--h50ea8bc_0"
    Int preemptible_tries = 3
  }

  Boolean is_cram = basename(input_bam) != basename(input_bam, ".cram")
  String sample = if is_cram then basename(input_bam, ".cram") else basename(input_bam, ".bam")
  String suffix = if make_gvcf then ".g.vcf.gz" else ".vcf.gz"

  if (is_cram) {
    call CramToBam {
      input: cram = input_bam, sample = sample, ref_fasta = ref_fasta, ref_fasta_index = ref_fasta_index, image = samtools_image
    }
  }

  scatter (interval in intervals) {
    call HaplotypeCaller {
      input:
        bam = select_first([CramToBam.bam, input_bam]),
        bam_index = select_first([CramToBam.bai, input_bam_index]),
        interval = interval,
        output_name = sample + suffix,
        ref_dict = ref_dict,
        ref_fasta = ref_fasta,
        ref_fasta_index = ref_fasta_index,
        make_gvcf = make_gvcf,
        scatter_count = length(intervals),
        image = gatk_image,
        preemptible_tries = preemptible_tries
    }
  }

  call MergeGvcfs {
    input: vcfs = HaplotypeCaller.vcf, indexes = HaplotypeCaller.index, output_name = sample + suffix, image = gatk_image
  }

  output {
    File vcf = MergeGvcfs.vcf
    File index = MergeGvcfs.index
  }
}

task CramToBam {
  input {
    File cram
    String sample
    File ref_fasta
    File ref_fasta_index
    String image
  }
  Int disk_gb = ceil(size(cram, "GB") * 6 + size(ref_fasta, "GB")) + 20
  command <<<
    set -euo pipefail
    samtools view -b -T ~{ref_fasta} -o ~{sample}.bam ~{cram}
    samtools index ~{sample}.bam ~{sample}.bai
  >>>
  runtime {
    docker: image
    cpu: 4
    memory: "15 GiB"
    disks: "local-disk " + disk_gb + " HDD"
  }
  output {
    File bam = "~{sample}.bam"
    File bai = "~{sample}.bai"
  }
}

task HaplotypeCaller {
  input {
    File bam
    File bam_index
    File interval
    String output_name
    File ref_dict
    File ref_fasta
    File ref_fasta_index
    Boolean make_gvcf
    Int scatter_count
    String image
    Int preemptible_tries
    Int? memory_gb
  }
  Int machine_memory_gb = select_first([memory_gb, 7])
  Int heap_gb = machine_memory_gb - 1
  Int disk_gb = ceil((size(bam, "GB") + 30) / scatter_count + size(ref_fasta, "GB")) + 20
  command <<<
    set -euo pipefail
    gatk --java-options "-Xmx~{heap_gb}G" HaplotypeCaller -R ~{ref_fasta} -I ~{bam} -L ~{interval} \
      -O ~{output_name} ~{true="-ERC GVCF" false="" make_gvcf}
  >>>
  runtime {
    docker: image
    cpu: 2
    memory: machine_memory_gb + " GiB"
    disks: "local-disk " + disk_gb + " HDD"
    preemptible: preemptible_tries
  }
  output {
    File vcf = output_name
    File index = output_name + ".tbi"
  }
}

task MergeGvcfs {
  input {
    Array[File] vcfs
    Array[File] indexes
    String output_name
    String image
  }
  command <<<
    set -euo pipefail
    gatk --java-options "-Xmx2G" MergeVcfs --INPUT ~{sep=" --INPUT " vcfs} --OUTPUT ~{output_name}
  >>>
  runtime {
    docker: image
    cpu: 1
    memory: "3 GiB"
    disks: "local-disk " + (ceil(size(vcfs, "GB") * 2) + 10) + " HDD"
  }
  output {
    File vcf = output_name
    File index = output_name + ".tbi"
  }
}
