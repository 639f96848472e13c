version 1.1

# Reads are sorted and counted by the samtools of an image.
workflow reads {
  input {
    File sam
    String image
  }
  call sorted { input: sam, image }
  scatter (region in ["seq1", "seq2"]) {
    call count { input: bam = sorted.bam, index = sorted.index, region, image }
  }
  output {
    Array[Int] counts = count.reads
    File bam = sorted.bam
  }
}

task sorted {
  input {
    File sam
    String image
  }
  command <<<
    set -e
    samtools view -b -t <(printf 'seq1\t1575\nseq2\t1584\n') ~{sam} | samtools sort -o sorted.bam -
    samtools index sorted.bam
  >>>
  output {
    File bam = "sorted.bam"
    File index = "sorted.bam.bai"
  }
  runtime {
    docker: image
    memory: "128 MiB"
  }
}

task count {
  input {
    File bam
    File index
    String region
    String image
  }
  command <<<
    ln -s ~{bam} in.bam
    ln -s ~{index} in.bam.bai
    samtools view -c in.bam ~{region}
  >>>
  output {
    Int reads = read_int(stdout())
  }
  runtime {
    docker: image
    memory: "128 MiB"
  }
}
