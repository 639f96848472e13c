version 1.1

# The variants of NA18507, as variant-calling.json finds them, with the DAG in WDL: 14 lanes are split off, sorted and merged, duplicates
# are marked, 6 regions are called and joined. The tasks call the same program, which takes its files from variables.
workflow variant_calling {
  input {
    File program
    File reads
    File reference
    Array[String] lanes = [
      "B7", "EAS1", "EAS112", "EAS114", "EAS139", "EAS188", "EAS192",
      "EAS218", "EAS219", "EAS220", "EAS221", "EAS51", "EAS54", "EAS56"
    ]
    Array[String] regions = [
      "seq1:1-525", "seq1:526-1050", "seq1:1051-1575",
      "seq2:1-528", "seq2:529-1056", "seq2:1057-1584"
    ]
  }

  scatter (lane in lanes) {
    call split { input: program, reads, reference, lane }
    call sort { input: program, lane = split.bam }
  }
  call mark { input: program, lanes = sort.bam }
  scatter (region in regions) {
    call call_region { input: program, reference, region, marked = mark.bam, index = mark.index }
  }
  call join { input: program, marked = mark.bam, calls = call_region.bcf }

  output {
    File variants = join.vcf
    Map[String, Int] summary = join.summary
  }
}

task split {
  input {
    File program
    File reads
    File reference
    String lane
  }
  command <<<
    export FLOWSCHED_ITEM='~{lane}' FLOWSCHED_INPUT_READS='~{reads}' FLOWSCHED_INPUT_REFERENCE='~{reference}'
    FLOWSCHED_OUTPUT_LANE=lane.bam python '~{program}' lane
  >>>
  output {
    File bam = "lane.bam"
  }
  runtime {
    memory: "256 MiB"
  }
}

task sort {
  input {
    File program
    File lane
  }
  command <<<
    FLOWSCHED_INPUT_LANE='~{lane}' FLOWSCHED_OUTPUT_SORTED=sorted.bam python '~{program}' sort
  >>>
  output {
    File bam = "sorted.bam"
  }
  runtime {
    memory: "256 MiB"
  }
}

task mark {
  input {
    File program
    Array[File] lanes
  }
  command <<<
    set -e
    FLOWSCHED_INPUT_LANES=~{write_lines(lanes)} FLOWSCHED_OUTPUT_MERGED=merged.bam python '~{program}' merge
    export FLOWSCHED_INPUT_MERGED=merged.bam FLOWSCHED_OUTPUT_MARKED=marked.bam FLOWSCHED_OUTPUT_INDEX=marked.bam.bai
    python '~{program}' markdup
  >>>
  output {
    File bam = "marked.bam"
    File index = "marked.bam.bai"
  }
  runtime {
    memory: "512 MiB"
  }
}

task call_region {
  input {
    File program
    File reference
    File marked
    File index
    String region
  }
  command <<<
    export FLOWSCHED_ITEM='~{region}' FLOWSCHED_INPUT_REFERENCE='~{reference}' FLOWSCHED_OUTPUT_CALLS=calls.bcf
    FLOWSCHED_INPUT_MARKED='~{marked}' FLOWSCHED_INPUT_INDEX='~{index}' python '~{program}' call
  >>>
  output {
    File bcf = "calls.bcf"
  }
  runtime {
    memory: "256 MiB"
    maxRetries: 1
  }
}

task join {
  input {
    File program
    File marked
    Array[File] calls
  }
  command <<<
    set -e
    export FLOWSCHED_OUTPUT_VARIANTS=NA18507.vcf FLOWSCHED_INPUT_VARIANTS=NA18507.vcf FLOWSCHED_INPUT_MARKED='~{marked}'
    FLOWSCHED_INPUT_CALLS=~{write_lines(calls)} python '~{program}' concat
    FLOWSCHED_OUTPUT_STATS=stats.txt FLOWSCHED_OUTPUT_SUMMARY=summary.json python '~{program}' stats
  >>>
  output {
    File vcf = "NA18507.vcf"
    Map[String, Int] summary = read_json("summary.json")
  }
  runtime {
    memory: "256 MiB"
  }
}
