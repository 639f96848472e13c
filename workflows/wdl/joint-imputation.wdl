version 1.0

# A cohort: genotyped together chromosome by chromosome, phased and imputed chunk by chunk. Which chunks a chromosome has stands in
# the inputs; chromosome X has a step of its own; imputation can be left out, and a GPU can be used for it.

struct Panel {
  String contig
  File reference_haplotypes
  File genetic_map
  Array[String] chunks
}

struct Machine {
  Int cpu
  Int memory_gb
  Boolean gpu
}

workflow JointImputation {
  input {
    Array[File]+ gvcfs
    Array[Panel]+ panels
    File ref_fasta
    Boolean impute = true
    Boolean rare_variants = false
    Machine imputation = object { cpu: 4, memory_gb: 24, gpu: false }
    Int samples_per_batch = 2
  }

  Int batches = ceil(length(gvcfs) * 1.0 / samples_per_batch)

  scatter (batch in range(batches)) {
    call CheckBatch { input: gvcfs = gvcfs, batch = batch }
  }

  scatter (panel in panels) {
    call GenotypeContig { input: gvcfs = gvcfs, contig = panel.contig, ref_fasta = ref_fasta, checks = CheckBatch.report }

    if (panel.contig == "chrX") {
      call SplitByPloidy { input: vcf = GenotypeContig.vcf }
    }
    File to_impute = select_first([SplitByPloidy.split, GenotypeContig.vcf])

    if (impute) {
      scatter (chunk in panel.chunks) {
        call PhaseChunk { input: vcf = to_impute, chunk = chunk, genetic_map = panel.genetic_map }
        call ImputeChunk {
          input: vcf = PhaseChunk.phased, chunk = chunk, haplotypes = panel.reference_haplotypes, machine = imputation
        }
        if (rare_variants) {
          call RareVariants { input: vcf = ImputeChunk.imputed }
        }
      }
      call LigateChunks { input: vcfs = ImputeChunk.imputed, contig = panel.contig }
    }
    File finished = select_first([LigateChunks.vcf, to_impute])
  }

  call GatherCohort { input: vcfs = finished }

  output {
    File vcf = GatherCohort.vcf
  }
}

task CheckBatch {
  input {
    Array[File] gvcfs
    Int batch
  }
  command <<<
    echo ~{batch} ~{length(gvcfs)} > report.txt
  >>>
  runtime {
    docker: "ubuntu:24.04"
    memory: "1 GiB"
  }
  output {
    File report = "report.txt"
  }
}

task GenotypeContig {
  input {
    Array[File] gvcfs
    String contig
    File ref_fasta
    Array[File] checks
  }
  command <<<
    gatk GenomicsDBImport -V ~{sep=" -V " gvcfs} -L ~{contig} --genomicsdb-workspace-path db
    gatk GenotypeGVCFs -R ~{ref_fasta} -V gendb://db -L ~{contig} -O ~{contig}.vcf.gz
  >>>
  runtime {
    docker: "broadinstitute/gatk:4.5.0.0"
    cpu: 4
    memory: (8 + 2 * length(gvcfs)) + " GiB"
    disks: "local-disk 100 SSD"
  }
  output {
    File vcf = "~{contig}.vcf.gz"
  }
}

task SplitByPloidy {
  input {
    File vcf
  }
  command <<<
    bcftools +fixploidy ~{vcf} -Oz -o ploidy.vcf.gz
  >>>
  runtime {
    docker: "quay.io/biocontainers/bcftools:1.19--h8b25389_0"
    memory: "4 GiB"
  }
  output {
    File split = "ploidy.vcf.gz"
  }
}

task PhaseChunk {
  input {
    File vcf
    String chunk
    File genetic_map
  }
  command <<<
    eagle --vcf ~{vcf} --geneticMapFile ~{genetic_map} --chrom ~{chunk} --outPrefix phased
  >>>
  runtime {
    docker: "us.gcr.io/broad-dsde-methods/imputation-eagle:1.0.0"
    cpu: 8
    memory: "32 GiB"
  }
  output {
    File phased = "phased.vcf.gz"
  }
}

task ImputeChunk {
  input {
    File vcf
    String chunk
    File haplotypes
    Machine machine
  }
  command <<<
    minimac4 --refHaps ~{haplotypes} --haps ~{vcf} --region ~{chunk} --cpus ~{machine.cpu} --prefix imputed
  >>>
  runtime {
    docker: "us.gcr.io/broad-dsde-methods/imputation-minimac4:1.0.0"
    cpu: machine.cpu
    memory: machine.memory_gb + " GiB"
    gpu: machine.gpu
    disks: "local-disk " + (ceil(size(vcf, "GB") * 3 + size(haplotypes, "GB")) + 20) + " HDD"
  }
  output {
    File imputed = "imputed.vcf.gz"
  }
}

task RareVariants {
  input {
    File vcf
  }
  command <<<
    bcftools view -i 'MAF<0.001' ~{vcf} -Oz -o rare.vcf.gz
  >>>
  runtime {
    docker: "quay.io/biocontainers/bcftools:1.19--h8b25389_0"
  }
  output {
    File rare = "rare.vcf.gz"
  }
}

task LigateChunks {
  input {
    Array[File] vcfs
    String contig
  }
  command <<<
    bcftools concat --ligate ~{sep=" " vcfs} -Oz -o ~{contig}.imputed.vcf.gz
  >>>
  runtime {
    docker: "quay.io/biocontainers/bcftools:1.19--h8b25389_0"
    memory: "4 GiB"
  }
  output {
    File vcf = "~{contig}.imputed.vcf.gz"
  }
}

task GatherCohort {
  input {
    Array[File] vcfs
  }
  command <<<
    bcftools concat ~{sep=" " vcfs} -Oz -o cohort.vcf.gz
  >>>
  runtime {
    docker: "quay.io/biocontainers/bcftools:1.19--h8b25389_0"
    cpu: 2
    memory: "4 GiB"
  }
  output {
    File vcf = "cohort.vcf.gz"
  }
}
