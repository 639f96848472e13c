"""GA4GH TES tasks as workflows, and answers in its form."""
