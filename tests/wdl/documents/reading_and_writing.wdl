version 1.1

# Every way by which values become files and files become values.
workflow reading_and_writing {
  input {
    File table
  }
  Array[Array[String]] rows = read_tsv(table)
  call work { input: rows = rows, map = {"k": "v", "l": "w"} }
  output {
    Int number = work.number
    Float fraction = work.fraction
    Boolean flag = work.flag
    Array[String] lines = work.lines
    Array[Array[String]] turned = work.turned
    Map[String, String] map = work.map_back
    Array[Map[String, String]] objects = work.objects
    Float bytes = size(table)
  }
}

task work {
  input {
    Array[Array[String]] rows
    Map[String, String] map
  }
  command <<<
    echo 42 > number
    echo 2.5 > fraction
    echo true > flag
    cut -f 1 ~{write_tsv(rows)} > lines
    awk -F '\t' '{print $2 "\t" $1}' ~{write_tsv(rows)} > turned
    sort -r ~{write_map(map)} > map
    printf 'id\tname\n1\tone\n2\ttwo\n' > objects
    echo 'this goes to the log' >&2
  >>>
  output {
    Int number = read_int("number")
    Float fraction = read_float("fraction")
    Boolean flag = read_boolean("flag")
    Array[String] lines = read_lines("lines")
    Array[Array[String]] turned = read_tsv("turned")
    Map[String, String] map_back = read_map("map")
    Array[Map[String, String]] objects = read_objects("objects")
  }
}
