version 1.1

# What is taken, what is not, and what waits for a condition that a task computes.
workflow conditionals {
  input {
    Boolean polite = true
    String? title
  }
  call measure { input: text = "flowsched" }
  if (measure.size > 5) {
    call say as long_name { input: text = "long" }
    if (!polite) {
      call say as rude { input: text = "rude" }
    }
  }
  if (measure.size <= 5) {
    call say as short_name { input: text = "short" }
  }
  if (defined(title)) {
    call say as titled { input: text = select_first([title]) }
  }
  output {
    String taken = select_first([short_name.said, long_name.said])
    String? not_taken = short_name.said
    String? inner = rude.said
    String? with_title = titled.said
    Boolean was_short = defined(short_name.said)
  }
}

task measure {
  input {
    String text
  }
  command <<<
    printf '%s' '~{text}' | wc -c
  >>>
  output {
    Int size = read_int(stdout())
  }
}

task say {
  input {
    String text
  }
  command <<<
    echo 'it is ~{text}'
  >>>
  output {
    String said = read_string(stdout())
  }
}
