version 1.1

# Tasks that go on until a file appears in their folder, and say how often they were started in it.
workflow waiting {
  input {
    Int width = 2
  }
  scatter (n in range(width)) {
    call wait { input: n = n }
  }
  call join { input: starts = wait.starts }
  output {
    Array[Int] starts = wait.starts
    Int sum = join.sum
  }
}

task wait {
  input {
    Int n
  }
  command <<<
    echo 'waiting ~{n}' >&2
    echo start >> starts
    until [ -e go ]; do sleep 0.2; done
    wc -l < starts
  >>>
  output {
    Int starts = read_int(stdout())
  }
}

task join {
  input {
    Array[Int] starts
  }
  command <<<
    echo start >> starts
    echo $((~{sep(" + ", prefix("", starts))}))
  >>>
  output {
    Int sum = read_int(stdout())
  }
}
