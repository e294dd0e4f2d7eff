"""Seeded questions whose lengths differ, and so do those of their answers."""

import random

COUNTRIES = ("France", "Italy", "Japan", "Korea", "Norway", "Peru", "Egypt", "Canada", "Greece", "India")
THINGS = ("a lighthouse", "a compass", "a glacier", "a violin", "a bridge", "a volcano", "a bicycle")
ANIMALS = ("a fox", "an owl", "a whale", "a hedgehog", "a crow", "a beaver", "a turtle", "a lynx")
REMARKS = (
    "I am writing a short text for a school newspaper.",
    "My friends and I could not agree on this yesterday evening.",
    "Please keep in mind that the readers are ten years old.",
    "It has been raining here for three days, so there is time to read.",
)


def make_questions(num: int, seed: int) -> list[str]:
    """Some are answered in a word, some in a sentence, some go on until they are cut.

    The first questions are the same for every `num`.
    """
    rng = random.Random(seed)
    return [_question(rng) for _ in range(num)]


def _question(rng: random.Random) -> str:
    question = rng.choice(
        (
            f"What is the capital of {rng.choice(COUNTRIES)}? Answer with one word.",
            f"What is {rng.randint(2, 9)} plus {rng.randint(2, 9)}? Answer with the number alone.",
            f"Say in one short sentence what {rng.choice(THINGS)} is.",
            f"Write a long story about {rng.choice(ANIMALS)} that finds {rng.choice(THINGS)}.",
        )
    )
    return f"{rng.choice(REMARKS)} {question}" if rng.random() < 0.5 else question
