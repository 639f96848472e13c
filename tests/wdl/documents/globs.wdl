version 1.1

# Files that nobody can name ahead: none, some, and some in a folder; and a task over what was found.
workflow globs {
  call make
  scatter (file in make.parts) {
    call first_line { input: file = file }
  }
  call count { input: files = make.nothing }
  output {
    Int parts = length(make.parts)
    Array[String] lines = first_line.line
    Array[File] deep = make.deep
    Array[File] nothing = make.nothing
    Int counted = count.number
  }
}

task make {
  command <<<
    mkdir -p sub/dir
    for n in 1 2 3; do echo "part $n" > "part.$n.txt"; done
    echo deep > sub/dir/leaf.txt
  >>>
  output {
    Array[File] parts = glob("part.*.txt")
    Array[File] deep = glob("sub/*/*.txt")
    Array[File] nothing = glob("*.bam")
  }
}

task first_line {
  input {
    File file
  }
  command <<<
    head -n 1 '~{file}'
  >>>
  output {
    String line = read_string(stdout())
  }
}

task count {
  input {
    Array[File] files
  }
  command <<<
    wc -l < ~{write_lines(files)}
  >>>
  output {
    Int number = read_int(stdout())
  }
}
