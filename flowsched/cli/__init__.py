"""The command line: thin over `app` (a service in this process) and `client` (one elsewhere).

Nothing heavy is imported before a command needs it: `flowsched --help` loads typer and little else.
"""
