version 1.2

# A folder goes from task to task as one thing.
workflow directories {
  call fill
  call look { input: folder = fill.folder }
  output {
    Array[String] names = look.names
    File inner = look.inner
  }
}

task fill {
  command <<<
    mkdir -p tree/deep
    echo one > tree/one.txt
    echo two > tree/deep/two.txt
  >>>
  output {
    Directory folder = "tree"
  }
}

task look {
  input {
    Directory folder
  }
  command <<<
    (cd ~{folder} && find . -type f | sort)
    cp ~{folder}/deep/two.txt copy.txt
  >>>
  output {
    Array[String] names = read_lines(stdout())
    File inner = "copy.txt"
  }
}
