version 1.1

# One task fails while another one would run for long.
workflow failing {
  call long
  call bad
  output {
    Int never = bad.number
  }
}

task bad {
  command <<<
    echo 'the file is truncated' >&2
    sleep 0.5
    exit 3
  >>>
  output {
    Int number = read_int(stdout())
  }
}

task long {
  command <<<
    sleep 300
  >>>
}
