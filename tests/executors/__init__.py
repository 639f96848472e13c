import pytest

pytest.register_assert_rewrite("tests.executors.executor_contract")
