# Five jobs: one makes three parts, three count them side by side, one adds up. `--config broken=b` makes one of them fail.
LETTERS = ["a", "b", "c"]
BROKEN = config.get("broken", "")


rule total:
    input:
        expand("{letter}.count", letter=LETTERS),
    output:
        "total.txt",
    shell:
        "cat {input} | awk '{{ sum += $1 }} END {{ print sum }}' > {output}"


rule split:
    output:
        expand("{letter}.part", letter=LETTERS),
    shell:
        "lines=0; for part in {output}; do lines=$((lines + 1)); seq $lines > $part; done"


rule count:
    input:
        "{letter}.part",
    output:
        "{letter}.count",
    params:
        broken=lambda wildcards: "yes" if wildcards.letter == BROKEN else "no",
    shell:
        "if test {params.broken} = yes; then echo part {wildcards.letter} is broken >&2; exit 3; fi; wc -l < {input} > {output}"
