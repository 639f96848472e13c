version 1.0
workflow rnaseq {
  input { Int samples = 8 }
  scatter (s in range(samples)) {
    call step as fastqc { input: seconds = 3, cpu = 1 }
    call step as trim { input: seconds = 2, cpu = 1 }
    call step as star { input: seconds = 6, cpu = 2, after = [trim.out] }
    call step as salmon { input: seconds = 4, cpu = 1, after = [trim.out] }
    call step as feature_counts { input: seconds = 3, cpu = 1, after = [star.out] }
    scatter (k in range(4)) {
      call step as rseqc { input: seconds = 3, cpu = 1, after = [star.out] }
    }
    call step as bigwig { input: seconds = 4, cpu = 1, after = [star.out] }
    call step as dupradar { input: seconds = 3, cpu = 1, after = [star.out] }
  }
  call step as deseq { input: seconds = 8, cpu = 1, after = feature_counts.out }
  call step as pathways { input: seconds = 6, cpu = 1, after = [deseq.out] }
  call step as multiqc { input: seconds = 2, cpu = 1, after = flatten([fastqc.out, salmon.out, bigwig.out, dupradar.out, flatten(rseqc.out)]) }
  output { File a = pathways.out  File b = multiqc.out }
}

task step {
  input { Int seconds  Int cpu  Array[File] after = [] }
  command <<< sleep ~{seconds}; echo done > out.txt >>>
  runtime { cpu: cpu  memory: "256 MiB" }
  output { File out = "out.txt" }
}
