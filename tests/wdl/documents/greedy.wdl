version 1.1

# Takes more memory than it has asked for.
workflow greedy {
  call take
}

task take {
  command <<<
    python3 -c 'import time; held = bytearray(400 << 20); time.sleep(60)'
  >>>
  runtime {
    memory: "64 MiB"
  }
}
