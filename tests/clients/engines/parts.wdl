version 1.2

task grow {
    input { String part String script String folder }
    command <<< sh ~{script} ~{part} ~{folder} >>>
    output { File text = stdout() }
    requirements { container: "ubuntu:24.04" max_retries: 1 }
}

task join {
    input { Array[File] texts }
    command <<< cat ~{sep(" ", texts)} > all.txt >>>
    output { File all = "all.txt" }
    requirements { container: "ubuntu:24.04" }
}

workflow parts {
    input { Array[String] parts String script String folder }
    scatter (part in parts) { call grow { input: part, script, folder } }
    call join { input: texts = grow.text }
    output { File all = join.all }
}
