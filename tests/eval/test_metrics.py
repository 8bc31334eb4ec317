"""Metrics against published examples and against what they must obey."""

import pytest

from hypic.eval.metrics import (
    best_over,
    bootstrap_interval,
    exact_match,
    normalise_answer,
    relative_drop,
    rouge_l,
    token_f1,
)

# From the card of the SQuAD metric in Hugging Face's `evaluate`: these three score 66.67 in both.
PUBLISHED = [("1976", "1976"), ("Beyonce", "Beyoncé and Bruno Mars"), ("climate change", "climate change")]


@pytest.mark.parametrize("score", [exact_match, token_f1])
def test_published_example_of_squad(score: object) -> None:
    assert callable(score)
    assert 100 * sum(score(*pair) for pair in PUBLISHED) / 3 == pytest.approx(66.66666666666667)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The Denver Broncos", ["Denver Broncos", "Denver Broncos", "Denver Broncos"], 1.0, 1.0),
        ("Carolina Panthers", ["Denver Broncos"], 0.0, 0.0),
        ("Santa Clara, California", ["Santa Clara", "Levi's Stadium"], 0.0, 0.8),
        ("in the year 1066", ["1066", "the year 1066"], 0.0, 0.8),
        ("golden", ["gold", "gold-themed"], 0.0, 0.0),
    ],
)
def test_rules_of_the_script_evaluate_v1_1(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    """Worked by hand from the published script: articles and punctuation go, the best of the answers counts."""
    assert best_over(exact_match, prediction, answers) == exact
    assert best_over(token_f1, prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "prediction", "expected"),
    [
        # The example of rouge-score's own page: five words in common order, of eight and nine.
        ("The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.", 2 * 5 / (9 + 8)),
        # Lin 2004, section 3.2: longest common subsequences of three and of two words of four.
        ("police killed the gunman", "police kill the gunman", 1.0),
        ("police killed the gunman", "the gunman kill police", 0.5),
        ("", "anything", 0.0),
    ],
)
def test_published_examples_of_rouge_l(answer: str, prediction: str, expected: float) -> None:
    """kill and killed are one word here: words are stemmed, as in the published scores of summaries."""
    assert rouge_l(prediction, answer) == pytest.approx(expected)


def test_normalisation_drops_case_punctuation_articles_and_spaces() -> None:
    assert normalise_answer("  The  Eiffel-Tower, (in) a Paris. ") == "eiffeltower in paris"
    assert exact_match("the Denver Broncos!", "Denver Broncos") == 1.0
    assert exact_match("theatre", "atre") == 0.0, "articles go as words, not as letters"


def test_f1_counts_repeated_words_once_each() -> None:
    assert token_f1("blue blue car", "blue car") == pytest.approx(2 * (2 / 3) * 1.0 / (2 / 3 + 1.0))
    assert token_f1("red", "blue") == 0.0
    assert token_f1("", "") == token_f1("the", "") == 1.0
    assert token_f1("", "blue") == 0.0


def test_best_of_several_answers_counts() -> None:
    assert best_over(token_f1, "New York City", ("NYC", "New York")) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="no accepted answer"):
        best_over(exact_match, "x", ())


def test_bootstrap_interval_covers_the_mean_and_repeats() -> None:
    values = [0.0] * 30 + [100.0] * 70
    low, high = bootstrap_interval(values)
    assert low < 70 < high
    assert high - low == pytest.approx(2 * 1.96 * (0.3 * 0.7 / 100) ** 0.5 * 100, rel=0.15), "that of a proportion"
    assert (low, high) == bootstrap_interval(values)
    assert bootstrap_interval([5.0, 5.0]) == (5.0, 5.0)
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])


def test_relative_drop_is_of_the_reference() -> None:
    assert relative_drop(80.0, 60.0) == 25.0
    assert relative_drop(0.0, 0.0) == 0.0
