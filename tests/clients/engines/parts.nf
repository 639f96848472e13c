process GROW {
    tag { part }
    errorStrategy { task.attempt > 1 ? 'terminate' : 'retry' }
    maxRetries 1
    input: val part
    output: path 'text'
    script: "sh ${params.script} $part ${params.folder} > text"
}

process JOIN {
    publishDir params.folder, mode: 'copy'
    input: path 'text?'
    output: path 'all.txt'
    script: "cat text* > all.txt"
}

workflow {
    JOIN(GROW(Channel.fromList(params.parts.tokenize(' '))).collect())
}
