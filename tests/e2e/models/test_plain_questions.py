"""Ten plain questions that a small model answers: facts are asserted, not wording."""

from collections.abc import Iterator

import pytest

from legato import LLM, SamplingParams

pytestmark = pytest.mark.model

FACTS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "What is 2+2?": "4",
    "What color is the sky on a clear day?": "blue",
    "What is the opposite of hot?": "cold",
    "What is the largest ocean on Earth?": "Pacific",
    "What star does the Earth orbit?": "Sun",
    "In which country is the Eiffel Tower?": "France",
    "What language is spoken in Brazil?": "Portuguese",
    "What is the chemical formula of water?": "H2O",
}
EXAMPLES = """\
Question: What is the capital of Spain?
Answer: Madrid

Question: How many wheels does a bicycle have?
Answer: 2

"""


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    with LLM("smollm2-135m-instruct") as llm:
        yield llm


@pytest.fixture(scope="module")
def gemma() -> Iterator[LLM]:
    with LLM("gemma-3-270m") as llm:
        yield llm


@pytest.mark.parametrize("question", FACTS)
def test_smollm2_knows(smollm2: LLM, question: str) -> None:
    answer = smollm2.chat(
        [{"role": "user", "content": question}], SamplingParams(max_tokens=24, temperature=0)
    )
    assert FACTS[question] in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("question", FACTS)
def test_gemma_knows(gemma: LLM, question: str) -> None:
    """A base model: two examples show it what an answer is."""
    prompt = f"{EXAMPLES}Question: {question}\nAnswer:"
    [answer] = gemma.generate([prompt], SamplingParams(max_tokens=12, temperature=0, stop=["\n"]))
    assert FACTS[question] in answer.text


@pytest.mark.slow
def test_gemma_goes_on_as_the_same_file_does_elsewhere(gemma: LLM) -> None:
    """Greedy continuations by transformers 5.24 of the file, dequantized: it takes minutes to read it."""
    expected = {
        "The capital of France is": " the capital of the country of France. It is the largest",
        "Q: What is the capital of France?\nA:": " The capital of France is Paris.\nQ: What is",
        "Question: What is 2+2?\nAnswer:": " 2+2=4\nQuestion: What is ",
    }
    answers = gemma.generate(list(expected), SamplingParams(max_tokens=12, temperature=0))
    num_same = sum(answer.text == text for answer, text in zip(answers, expected.values(), strict=True))
    assert [answer.text[:30] for answer in answers] == [text[:30] for text in expected.values()]
    assert num_same >= 2  # a near-tie may fall the other way where sums are made in another order
