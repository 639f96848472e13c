"""The steps that run in a task's pod beside it, as programs of their own: stage-in, stage-out and ready."""
