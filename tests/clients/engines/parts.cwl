cwlVersion: v1.0
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {parts: "string[]", script: string, folder: string}
outputs: {all: {type: File, outputSource: join/all}}
steps:
  grow:
    scatter: part
    in: {part: parts, script: script, folder: folder}
    out: [text]
    run:
      class: CommandLineTool
      baseCommand: sh
      inputs:
        script: {type: string, inputBinding: {position: 1}}
        part: {type: string, inputBinding: {position: 2}}
        folder: {type: string, inputBinding: {position: 3}}
      stdout: text
      outputs: {text: {type: stdout}}
  join:
    in: {texts: grow/text}
    out: [all]
    run:
      class: CommandLineTool
      baseCommand: cat
      inputs: {texts: {type: "File[]", inputBinding: {}}}
      stdout: all.txt
      outputs: {all: {type: stdout}}
