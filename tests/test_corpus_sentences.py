"""Sentence splitting: the cases that rules get wrong, and what must hold for any text."""

from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from electra.corpus.sentences import split_sentences
from electra.corpus.text import clean

CASES = [
    ["One sentence without end"],
    ["It rained.", "We stayed in.", "Why not?", "So be it!"],
    ["Mr. Smith met Dr. Jones.", "They talked."],
    ["J. R. R. Tolkien wrote it.", "He was English."],
    ["It costs 3.50 or 1,000.25 a piece.", "That is a lot."],
    ["The U.S. Army came at 5 p.m. sharp.", "Nobody saw it."],
    ["See e.g. Smith et al. 2003 and i.e. Jones.", "Done."],
    ["It was built in 1990.", "He left."],
    ["See No. 5 and Fig. 3 on pp. 4.", "He said no.", "Then he left."],
    ['"Come on, Allison."', "Endicott came.", "(It was late.)", "He knew."],
    ["“Stop!”", "She ran.", "«Oui.»", "Il part."],
    ["Wait...", "Then what?!", "Nothing."],
    ["etc. and so on.", "Next."],
    ["It ended... and began.", "Well…", "Yes."],
    ["12. The cellar was dark.", "It rained."],
    ["Visit example.com or v1.2.3 now.", "Good."],
    ["Yahoo! is a firm.", "It was large."],
    ["Der Preis, z.B. 5 Euro bzw. Dollar.", "Das ist viel.", "Österreich auch."],
    ["¿Qué pasa?", "Nada.", "¡Vamos!", "Ya."],
    ["Он пришёл.", "Она ушла.", "Ёж спит."],
]
SPACELESS = [
    ["我来了。", "你呢？", "“好！”", "他说。"],
    ["東京は大きい。", "「本当？」", "はい！！", "そうです"],
    ["यह है।", "वह था।", "ठीक॥"],
    ["كيف حالك؟", "أنا بخير۔"],
    ["価格は３．５円です．", "次です．"],
    ["你好？!", "好。"],
    ["ជំរាបសួរ។", "អរគុណ៕"],
    ["བོད་ཡིག།", "གཉིས་པ།"],
    ["𑀓𑀓𑁈", "𑀔𑀔𑁇"],
]


@pytest.mark.parametrize("sentences", CASES, ids=lambda case: case[0][:20])
def test_cases(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize("sentences", SPACELESS, ids=lambda case: case[0])
def test_scripts_without_spaces_between_sentences(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences
    assert split_sentences(" ".join(sentences)) == sentences


@given(st.text(alphabet=st.sampled_from(list("abAB .!?…。！？”\"')]12é日")), max_size=200))
def test_nothing_is_lost_or_invented(raw: str) -> None:
    line = clean(raw)
    sentences = split_sentences(line)
    assert "".join(sentences).replace(" ", "") == line.replace(" ", "")
    if line:
        assert all(sentences) and all(sentence == sentence.strip() for sentence in sentences)


def test_a_sentence_without_end_stays_whole() -> None:
    for endless in (clean("Word " * 1000), "X" * 2500, "他们来了，" * 1000):
        assert split_sentences(endless) == [endless]
        assert split_sentences(f"One. {endless}") == ["One.", endless]


def test_every_sentence_terminator_of_unicode_ends_a_sentence() -> None:
    everything = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    terminators = regex.findall(r"\p{Sentence_Terminal}", everything)
    assert len(terminators) > 150
    for terminator in terminators:
        assert split_sentences(f"ᎠᎠᎠ{terminator} Ꭱ") == [f"ᎠᎠᎠ{terminator}", "Ꭱ"], f"U+{ord(terminator):04X}"
    for terminator in set(terminators) - set(".!?"):
        assert split_sentences(f"ᎠᎠᎠ{terminator}Ꭱ") == [f"ᎠᎠᎠ{terminator}", "Ꭱ"], (
            f"U+{ord(terminator):04X} without a space"
        )


@pytest.mark.parametrize(
    "hostile", [". " * 200_000, "." * 1_000_000, '."' * 300_000, "a." * 300_000, "。" * 500_000, "𑁇" * 300_000]
)
def test_promise_18_hostile_lines_take_linear_time(hostile: str) -> None:
    began = time.process_time()
    split_sentences(clean(hostile))
    assert time.process_time() - began < 10
