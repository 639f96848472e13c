version 1.2

# An exit code that is none to fail for, the environment of a task, and what it may use.
workflow return_codes {
  call odd { input: secret = "it's 5 $ \"worth\"" }
  output {
    String code = odd.code
    String variable = odd.variable
    Boolean here = odd.here
  }
}

task odd {
  input {
    env String secret
  }
  command <<<
    echo seven
    printf '%s' "$secret" > variable
    if [ "$(pwd)" = /mnt/miniwdl_task_container/work ]; then echo true > here; else echo false > here; fi
    exit 7
  >>>
  output {
    String code = read_string(stdout())
    String variable = read_string("variable")
    Boolean here = read_boolean("here")
  }
  requirements {
    return_codes: [0, 7]
    cpu: 1
    memory: "64 MiB"
  }
}
