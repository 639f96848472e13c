version 1.2

# Fails at its first try, and finds a folder without its traces at the second.
workflow tried_again {
  call flaky
  output {
    Int tries = flaky.tries
    String found = flaky.found
    File log = flaky.log
  }
}

task flaky {
  command <<<
    echo 'try ~{task.attempt}'
    if [ -e trace ]; then echo dirty > found; else echo clean > found; fi
    touch trace
    echo ~{task.attempt + 1} > tries
    if [ ~{task.attempt} -eq 0 ]; then echo 'not yet' >&2; exit 5; fi
  >>>
  output {
    Int tries = read_int("tries")
    String found = read_string("found")
    File log = stdout()
  }
  requirements {
    max_retries: 2
  }
}
