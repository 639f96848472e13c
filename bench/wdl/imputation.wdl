version 1.0
workflow imputation {
  input { Array[Int] chunks = [3, 5, 8, 4] }
  scatter (b in range(3)) { call step as check_batch { input: seconds = 2, cpu = 1 } }
  scatter (c in range(length(chunks))) {
    call step as genotype { input: seconds = 5, cpu = 2, after = check_batch.out }
    if (c == 3) { call step as split_ploidy { input: seconds = 6, cpu = 1, after = [genotype.out] } }
    File ready = select_first([split_ploidy.out, genotype.out])
    scatter (k in range(chunks[c])) {
      call step as phase { input: seconds = 5, cpu = 2, after = [ready] }
      call step as impute { input: seconds = 4, cpu = 1, after = [phase.out] }
      call step as rare { input: seconds = 3, cpu = 1, after = [impute.out] }
      call step as chunk_qc { input: seconds = 3, cpu = 1, after = [phase.out] }
    }
    call step as ligate { input: seconds = 3, cpu = 1, after = impute.out }
  }
  call step as gather { input: seconds = 5, cpu = 2, after = ligate.out }
  call step as report { input: seconds = 4, cpu = 1, after = [gather.out] }
  output { File a = report.out  Array[Array[File]] r = rare.out Array[Array[File]] q = chunk_qc.out }
}

task step {
  input { Int seconds  Int cpu  Array[File] after = [] }
  command <<< sleep ~{seconds}; echo done > out.txt >>>
  runtime { cpu: cpu  memory: "256 MiB" }
  output { File out = "out.txt" }
}
