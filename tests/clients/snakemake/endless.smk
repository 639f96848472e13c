# One job that goes on until somebody ends it.
rule endless:
    output:
        "never.txt",
    shell:
        "sleep 600; touch {output}"
