"""What only the leader does: recovery, the loop, dispatch, retention."""
