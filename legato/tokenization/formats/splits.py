"""How byte-level tokenizers take a text apart before they merge, by the names that .gguf files use.

The expressions are those of the models' own tokenizer.json files; merges never cross a cut.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, normalizers, pre_tokenizers

from legato.core.errors import ModelError

DIGIT = r"\p{N}"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"

# A word ends where small letters are followed by a capital one.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*",
)
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED_WORDS[0]}|{_CASED_WORDS[1]}|\p{{N}}|{_CASED_SYMBOLS}|{_SPACES}"
_GPT4O = (
    rf"{_CASED_WORDS[0]}{_CONTRACTION}?|{_CASED_WORDS[1]}{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_SYMBOLS}|{_SPACES}"
)

_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters that have a case, without Armenian's and Georgian's small ones.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbe"
    "ῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    DIGIT,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGIT)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"  # commas and stops of many scripts


@dataclass(frozen=True, slots=True)
class Splitting:
    r"""How one kind of tokenizer prepares a text for its merges.

    patterns           regular expressions; each cuts what the one before left, and its matches stand alone
    is_composed        the text is brought to Unicode's form C first
    takes_whole_words  a piece that is a token becomes it, whatever the merges would make of it
    adds_bos           bos goes first where a .gguf file does not say whether it does
    """

    patterns: tuple[str, ...]
    is_composed: bool = False
    takes_whole_words: bool = False
    adds_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.is_composed else None

    def pre_tokenizer(self, add_prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
        """Cut, then spell each piece in the alphabet of bytes."""
        patterns = list(self.patterns)
        splits_by_gpt2 = patterns[-1] == GPT2_WORDS
        if splits_by_gpt2:
            patterns.pop()
        spell = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=splits_by_gpt2)
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        return pre_tokenizers.Sequence([*cuts, spell]) if cuts else spell


def _named(names: str, splitting: Splitting) -> Iterable[tuple[str, Splitting]]:
    return [(name, splitting) for name in names.split()]


SPLITTINGS: dict[str, Splitting] = dict(
    [
        *_named(
            "gpt-2 default phi-2 jais trillion granite-docling gigachat mellum", Splitting((GPT2_WORDS,))
        ),
        *_named("mpt olmo", Splitting((GPT2_WORDS,), is_composed=True)),
        *_named("smollm starcoder refact codeshell exaone minerva-7b", Splitting((DIGIT, GPT2_WORDS))),
        *_named("command-r", Splitting((DIGIT, GPT2_WORDS), is_composed=True)),
        *_named("falcon", Splitting((r"[\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"))),
        *_named(
            "llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0 lfm2",
            Splitting((_LLAMA3,), takes_whole_words=True, adds_bos=True),
        ),
        *_named("dbrx smaug-bpe glm4 chatglm-bpe", Splitting((_LLAMA3,))),
        *_named("qwen2 deepseek-r1-qwen megrez kormo", Splitting((_QWEN2,), is_composed=True)),
        *_named("qwen35", Splitting((_QWEN35,), is_composed=True)),
        *_named("stablelm2", Splitting((_QWEN2,))),
        *_named("seed-coder", Splitting((_SEED_CODER,))),
        *_named("tekken", Splitting((_TEKKEN,), takes_whole_words=True, adds_bos=True)),
        *_named("gpt-4o llama4 kanana2", Splitting((_GPT4O,))),
        *_named("deepseek-llm", Splitting(_DEEPSEEK_LLM)),
        *_named("deepseek-coder", Splitting(_DEEPSEEK_CODER)),
        *_named("bloom poro-chat gpt3-finnish", Splitting((_BLOOM,))),
        *_named("viking", Splitting((_BLOOM, DIGIT))),
    ]
)


def splitting_named(name: object) -> Splitting:
    """Raises ModelError for an unknown name: another way to split would give wrong ids in silence."""
    known = SPLITTINGS.get(name) if isinstance(name, str) else None
    if known is None:
        nearest = ", ".join(get_close_matches(str(name), SPLITTINGS, cutoff=0.4))
        raise ModelError(
            f"tokenizer.ggml.pre is {name!r}, a way to split texts that is not known"
            + (f"; the nearest that are: {nearest}" if nearest else "")
        )
    return known
