rule join:
    input:
        expand("{part}.text", part=config["parts"].split()),
    output:
        "all.txt",
    shell:
        "cat {input} > {output}"


rule grow:
    output:
        "{part}.text",
    params:
        script=config["script"],
        folder=config["folder"],
    shell:
        "sh {params.script} {wildcards.part} {params.folder} > {output}"
