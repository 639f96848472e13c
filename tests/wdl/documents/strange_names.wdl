version 1.1

# Names that shells split and URIs escape, on stdin and as outputs; two inputs of one name; and what a task may not change.
workflow strange_names {
  input {
    File plain
  }
  call make
  scatter (file in make.files) {
    call count { input: file = file }
  }
  call both { input: one = make.same_a, other = make.same_b }
  call own { input: file = plain }
  output {
    Array[Int] letters = count.letters
    Array[File] files = make.files
    String together = both.together
    String kept = own.kept
  }
}

task make {
  command <<<
    printf abc > 'two words.txt'
    printf abcde > 'hash#100%{index}?.txt'
    printf 'ab' > "it's \"quoted\" \$HOME é.txt"
    mkdir a b
    echo A > a/same.txt
    echo B > b/same.txt
  >>>
  output {
    Array[File] files = ["two words.txt", "hash#100%{index}?.txt", "it's \"quoted\" $HOME é.txt"]
    File same_a = "a/same.txt"
    File same_b = "b/same.txt"
  }
}

task count {
  input {
    File file
  }
  File list = write_lines([file])
  command <<<
    set -eu
    IFS= read -r name < ~{list}
    wc -c < "$name"
  >>>
  output {
    Int letters = read_int(stdout())
  }
}

task both {
  input {
    File one
    File other
  }
  command <<<
    cat ~{one} ~{other} | tr -d '\n'
  >>>
  output {
    String together = read_string(stdout())
  }
}

task own {
  input {
    File file
  }
  command <<<
    if echo changed 2> /dev/null >> ~{file}; then echo changed; else echo kept; fi
  >>>
  output {
    String kept = read_string(stdout())
  }
}
