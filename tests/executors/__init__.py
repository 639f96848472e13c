import pytest

pytest.register_assert_rewrite("flowsched.cluster.conformance")
