version 1.0
workflow germline {
  input { Int samples = 6  Int intervals = 4 }
  scatter (s in range(samples)) {
    call step as fastqc { input: seconds = 4, cpu = 1 }
    call step as align { input: seconds = 8, cpu = 2 }
    call step as markdup { input: seconds = 3, cpu = 1, after = [align.out] }
    call step as insert_size { input: seconds = 3, cpu = 1, after = [markdup.out] }
    call step as wgs_metrics { input: seconds = 5, cpu = 1, after = [markdup.out] }
    call step as gc_bias { input: seconds = 3, cpu = 1, after = [markdup.out] }
    call step as bqsr { input: seconds = 3, cpu = 1, after = [markdup.out] }
    scatter (i in range(intervals)) {
      call step as haplotype_caller { input: seconds = 4, cpu = 1, after = [bqsr.out] }
    }
    call step as merge_gvcf { input: seconds = 2, cpu = 1, after = haplotype_caller.out }
  }
  call step as joint { input: seconds = 6, cpu = 2, after = merge_gvcf.out }
  call step as vqsr { input: seconds = 5, cpu = 1, after = [joint.out] }
  call step as annotate { input: seconds = 4, cpu = 1, after = [vqsr.out] }
  call step as multiqc { input: seconds = 2, cpu = 1, after = flatten([fastqc.out, insert_size.out, wgs_metrics.out, gc_bias.out]) }
  output { File a = annotate.out  File b = multiqc.out }
}

task step {
  input { Int seconds  Int cpu  Array[File] after = [] }
  command <<< sleep ~{seconds}; echo done > out.txt >>>
  runtime { cpu: cpu  memory: "256 MiB" }
  output { File out = "out.txt" }
}
