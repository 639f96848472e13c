version 1.1

# A task for each line, a file from each, one task over all of them.
workflow scatter_gather {
  input {
    Array[String] words
  }
  scatter (word in words) {
    call spell { input: word = word }
  }
  call join { input: parts = spell.letters }
  output {
    Array[Int] lengths = spell.length
    File all = join.all
  }
}

task spell {
  input {
    String word
  }
  command <<<
    printf '%s' '~{word}' | wc -c > length
    printf '%s\n' '~{word}' | sed 's/./&-/g; s/-$//' > letters.txt
  >>>
  output {
    Int length = read_int("length")
    File letters = "letters.txt"
  }
}

task join {
  input {
    Array[File] parts
  }
  command <<<
    cat ~{sep(" ", parts)} > all.txt
  >>>
  output {
    File all = "all.txt"
  }
}
