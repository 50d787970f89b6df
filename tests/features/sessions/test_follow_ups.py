"""A question that names nothing new keeps the tier of its conversation, and a change of topic does not."""

from __future__ import annotations

import pytest

from gateway.features.sessions.follow_ups import MAX_CHARACTERS, MAX_EARLIER, Reference, reference_of

ASKED = (
    "Derive the escape velocity of a planet from the conservation of energy, and apply it to Mars.",
    "The kinetic energy of a rocket must equal the work against gravity. For Mars, 5 km/s result. Air drag is ignored.",
)

FOLLOW_UPS = [
    "Can you explain more on this topic?",
    "Could you give me another example, please?",
    "Can you explain that in simpler terms for me?",
    "What are the main advantages and disadvantages?",
    "Please go into more detail about the second point.",
    "Why is that the case?",
    "How does this work in practice, step by step?",
    "I don't quite understand what you mean, sorry.",
    "Are there any exceptions to this rule that I should know?",
    "Can you summarise all of the above in a few sentences?",
    "And what about the first one you mentioned?",
    "Is there anything else that I need to know?",
    "Could you recommend some resources so I can read more?",
    "Can you make it a little shorter and more formal?",
    "Yes, please go on with the next step then.",
    "Thank you! Can you also show it as a table?",
    "What would happen if we changed these assumptions?",
    "Are you really sure that your last answer is correct?",
    "Tell me about the real-world applications of these ideas.",
    "Why does the kinetic energy of the rocket matter here?",
    "And why exactly is air drag ignored for Mars?",
    "Can you rewrite your answer as a list of bullet points?",
    "What is the difference between the former and the latter?",
    "Kannst du mir bitte noch ein Beispiel dazu geben?",
    "¿Puedes explicarme más ejemplos sobre este tema, por favor?",
    "Pouvez-vous donner un autre exemple de cette idée ?",
]

CHANGES = [
    "What is a good recipe for banana bread?",
    "How do I get to the airport from the city centre?",
    "What is the weather like in Bergen this week?",
    "Write an e-mail to my landlord about the broken heating.",
    "When does the pharmacy on Main Street open this morning?",
    "Who won the women's marathon at the last Olympics?",
    "Translate this into French: the meeting is on Monday.",
    "Fix the bug in this code:\nprint(x",
    "Can you recommend an example of a good vegetarian restaurant in Oslo?",
    "Explain how a vaccine trains the immune system.",
    "What is the difference between a cat and a dog?",
    "Play some quiet jazz in the kitchen, please.",
    "Welche Hauptstadt hat eigentlich Norwegen heute?",
    "请告诉我明天北京的天气怎么样，要不要带伞？",
]


@pytest.mark.parametrize("question", FOLLOW_UPS)
def test_a_question_that_names_nothing_new_is_a_follow_up(question: str) -> None:
    assert reference_of(question, reversed(ASKED)) is not Reference.NONE


@pytest.mark.parametrize("question", CHANGES)
def test_a_question_that_names_something_new_is_none(question: str) -> None:
    assert reference_of(question, reversed(ASKED)) is Reference.NONE


@pytest.mark.parametrize(
    ("question", "reference"),
    [
        ("Can you explain more on this topic?", Reference.ALL),
        ("Yes, please go on with the next step then.", Reference.ALL),
        ("Prove that this scheduler never starves a thread.", Reference.SUBJECT),  # its difficulty is its own
        ("Why does the kinetic energy of the rocket matter here?", Reference.SUBJECT),
    ],
)
def test_only_a_question_that_names_nothing_at_all_takes_the_difficulty_of_the_one_before(
    question: str, reference: Reference
) -> None:
    assert reference_of(question, reversed(ASKED)) is reference


def test_a_long_text_brings_something_of_its_own() -> None:
    question = "Explain this, please. " * 20
    assert len(question) > MAX_CHARACTERS
    assert reference_of(question, ASKED) is Reference.NONE


def test_only_the_newest_turns_are_searched() -> None:
    question = "Tell me more about the kinetic energy of rockets."
    assert reference_of(question, ("yes. " * 10, *ASKED)) is Reference.SUBJECT
    assert reference_of(question, ("x" * MAX_EARLIER, *ASKED)) is Reference.NONE


@pytest.mark.parametrize("question", ["", "?", "42", "\ud800", "🙂"])
def test_a_text_without_words_is_no_follow_up(question: str) -> None:
    assert reference_of(question, ASKED) is Reference.NONE
