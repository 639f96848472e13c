"""Two thousand small tasks, joined in two steps."""

from pathlib import Path

from document_runner import run_document


def test_the_total_of_a_thousand_squares_is_right(tmp_path: Path) -> None:
    """Σ i² + 1 over 0…999, in chunks of a hundred: each element arrives once and in its place."""
    made = run_document("fan-out.json", tmp_path)
    assert [len(paths) for paths in made.values()] == [1000, 1000, 10, 1]
    assert made["square.number"][999].read_text() == "998001\n"
    assert made["shift.number"][999].read_text() == "998002\n"
    assert made["subtotal.sum"][0].read_text() == "328450\n"
    assert made["subtotal.sum"][9].read_text() == "90238450\n"
    assert made["total.sum"][0].read_text() == "332834500\n"
