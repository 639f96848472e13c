"""Commands, their options and their help. Imports only what `flowsched --help` needs; bodies are imported when a command runs."""
