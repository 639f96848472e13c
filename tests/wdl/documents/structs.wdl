version 1.1

struct Sample {
  String name
  Int depth
  File reads
  Map[String, Float] scores
}

# Structs, maps and pairs go in and come out, files inside of them too.
workflow structs {
  scatter (pair in [("one", 1), ("two", 2)]) {
    call make { input: name = pair.left, depth = pair.right }
  }
  call describe { input: samples = make.sample }
  output {
    Array[Sample] samples = make.sample
    Map[String, Int] lines = describe.lines
    Pair[String, Int] best = (describe.best, describe.lines[describe.best])
  }
}

task make {
  input {
    String name
    Int depth
  }
  command <<<
    for n in $(seq ~{depth}); do echo "~{name} $n"; done > reads.txt
    printf '{"quality": 0.5, "depth": ~{depth}.25}' > scores.json
  >>>
  output {
    Sample sample = Sample {name: name, depth: depth, reads: "reads.txt", scores: read_json("scores.json")}
  }
}

task describe {
  input {
    Array[Sample] samples
  }
  command <<<
    python3 - ~{write_json(samples)} <<'END'
    import json, sys
    for sample in json.load(open(sys.argv[1])):
        print(sample["name"], len(open(sample["reads"]).readlines()), sep="\t")
    END
  >>>
  output {
    Map[String, Int] lines = read_map(stdout())
    String best = "two"
  }
}
