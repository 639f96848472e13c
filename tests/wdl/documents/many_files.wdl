version 1.1

# One task over more files than a document takes: those of the run, and one from outside.
workflow many_files {
  input {
    File outside
  }
  call make { input: number = 1200 }
  call join { input: files = flatten([make.files, [outside]]) }
  output {
    Int lines = join.lines
    String last = join.last
  }
}

task make {
  input {
    Int number
  }
  command <<<
    seq -w ~{number} | while read -r n; do echo "$n" > "$n.txt"; done
  >>>
  output {
    Array[File] files = glob("*.txt")
  }
}

task join {
  input {
    Array[File] files
  }
  File list = write_lines(files)
  command <<<
    xargs cat < ~{list} > all
    wc -l < all > lines
    tail -n 1 all
  >>>
  output {
    Int lines = read_int("lines")
    String last = read_string(stdout())
  }
}
