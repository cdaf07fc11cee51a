"""How many generations run, from a page in the form of Prometheus."""

from __future__ import annotations

import pytest

from streamguard.check.metrics import running

PAGE = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a",engine="0"} 1.0
vllm:num_requests_running{model_name="b"} 2.0 1700000000
vllm:num_requests_waiting{model_name="a"} 7.0
http_requests_total 1.5e+3
nothing NaN
"""


@pytest.mark.parametrize(
    ("page", "name", "found"),
    [
        (PAGE, None, 3.0),
        (PAGE, "http_requests_total", 1500.0),
        (PAGE, "no_such", None),
        (PAGE, "nothing", None),
        ("llamacpp:requests_processing 1\n", None, 1.0),
        ("tgi_batch_current_size 4\r\n", None, 4.0),
        ('sglang:num_running_reqs{a="}"} 4', None, None),
        ("<html>", None, None),
        ("", None, None),
    ],
)
def test_the_gauge_is_summed_over_its_labels(page: str, name: str | None, found: float | None) -> None:
    assert running(page, name) == found
