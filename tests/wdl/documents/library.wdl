version 1.1

workflow twice {
  input {
    String text
    File? before
  }
  call write as first { input: text = text, before = before }
  call write as second { input: text = text + "!", before = first.file }
  output {
    File file = second.file
  }
}

task write {
  input {
    String text
    File? before
  }
  command <<<
    cat ~{before} /dev/null > written.txt
    echo '~{text}' >> written.txt
  >>>
  output {
    File file = "written.txt"
  }
}
