"""The leader's work: recovery, the loop, dispatch, retention."""
