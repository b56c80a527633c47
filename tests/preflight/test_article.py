"""The article's experiment: what can be known before it runs, and no false alarms beside it."""

import pytest

from .plans import ARTICLE, EQUAL, codes, looked_at, planned


@pytest.fixture(scope="module")
def article():
    return looked_at(planned(ARTICLE))


def test_it_finds_what_the_articles_authors_could_not(article):
    first, second, *_ = article.findings
    assert (first.level, first.code) == ("unequal", "cuda-graphs")
    assert first.what == "CUDA graphs: off in vllm; on in sglang"
    assert "vLLM's enforce_eager" in first.change and "SGLang's disable_cuda_graph" in first.change
    assert (second.level, second.code) == ("unequal", "cuda-launch-blocking")
    assert second.arms == ("vllm", "sglang")
    assert "Here vllm has none" in second.why


def test_equal_terms_are_called_equal():
    assert codes(EQUAL, "unequal") == []
    assert codes(EQUAL, "impossible") == []
    assert codes(EQUAL, "odd") == ["kernel-compiler"]
