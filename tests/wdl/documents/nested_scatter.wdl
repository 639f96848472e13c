version 1.0

# A scatter in a scatter, and one that reads the scatter before it element by element. The items are numbers that are no indices.
workflow nested_scatter {
  scatter (row in [10, 20]) {
    scatter (column in [1, 2, 3]) {
      call add as sum { input: a = row, b = column }
    }
    call largest { input: numbers = sum.total }
  }
  scatter (found in largest.most) {
    call add as again { input: a = found, b = 100 }
  }
  output {
    Array[Array[Int]] sums = sum.total
    Array[Int] most = largest.most
    Array[Int] more = again.total
  }
}

task add {
  input {
    Int a
    Int b
  }
  command <<<
    echo $((~{a} + ~{b}))
  >>>
  output {
    Int total = read_int(stdout())
  }
}

task largest {
  input {
    Array[Int] numbers
  }
  command <<<
    sort -n ~{write_lines(numbers)} | tail -n 1
  >>>
  output {
    Int most = read_int(stdout())
  }
}
