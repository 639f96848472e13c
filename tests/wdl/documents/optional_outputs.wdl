version 1.1

# A file that is there, one that is not, and a task that runs without it.
workflow optional_outputs {
  call report as loud { input: warn = true }
  call report as quiet { input: warn = false }
  call read as of_loud { input: file = loud.warnings }
  call read as of_quiet { input: file = quiet.warnings }
  output {
    File? present = loud.warnings
    File? absent = quiet.warnings
    Array[String] told = [of_loud.text, of_quiet.text]
  }
}

task report {
  input {
    Boolean warn
  }
  command <<<
    if ~{warn}; then echo 'beware' > warnings.txt; fi
  >>>
  output {
    File? warnings = "warnings.txt"
  }
}

task read {
  input {
    File? file
  }
  command <<<
    ~{if defined(file) then "cat " + file else "echo nothing"}
  >>>
  output {
    String text = read_string(stdout())
  }
}
