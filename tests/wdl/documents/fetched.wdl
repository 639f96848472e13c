version 1.1

# A file from elsewhere, to two tasks.
workflow fetched {
  input {
    File far
  }
  scatter (n in [1, 2]) {
    call line { input: file = far, number = n }
  }
  output {
    Array[String] lines = line.text
    Array[String] names = line.name
  }
}

task line {
  input {
    File file
    Int number
  }
  command <<<
    sed -n '~{number}p' '~{file}'
  >>>
  output {
    String text = read_string(stdout())
    String name = basename(file)
  }
}
