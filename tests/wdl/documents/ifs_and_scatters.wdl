version 1.0

# Ifs in a scatter give an array with holes; a scatter in an if gives an optional array.
workflow ifs_and_scatters {
  scatter (n in range(4)) {
    if (n % 2 == 0) {
      call double as even { input: n = n }
    }
    if (n == 3) {
      scatter (m in [n, n + 1]) {
        call double as deep { input: n = m }
      }
    }
  }
  if (true) {
    scatter (n in [7, 8]) {
      call double as taken { input: n = n }
    }
  }
  if (false) {
    scatter (n in [7, 8]) {
      call double as dropped { input: n = n }
    }
  }
  output {
    Array[Int?] evens = even.result
    Array[Int] present = select_all(even.result)
    Array[Array[Int]?] deeper = deep.result
    Array[Int]? all_taken = taken.result
    Array[Int]? none_taken = dropped.result
  }
}

task double {
  input {
    Int n
  }
  command <<<
    echo $((~{n} * 2))
  >>>
  output {
    Int result = read_int(stdout())
  }
}
