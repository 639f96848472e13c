version 1.1

import "library.wdl" as lib

# One workflow under several names: alone, in an if, in a scatter; and a task of the library by itself.
workflow subworkflows {
  input {
    Boolean more = true
  }
  call lib.twice as a { input: text = "a" }
  if (more) {
    call lib.twice as b { input: text = "b", before = a.file }
  }
  if (!more) {
    call lib.twice as never { input: text = "never" }
  }
  scatter (name in ["x", "y"]) {
    call lib.twice as each { input: text = name }
  }
  call lib.write as last { input: text = "end", before = b.file }
  output {
    File chain = last.file
    Array[File] scattered = each.file
    File? nothing = never.file
  }
}
