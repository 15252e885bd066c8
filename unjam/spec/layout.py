"""Megatron's pipeline layout notation: which layers each virtual stage holds.

Tokens: E embedding, t transformer layer, m multi-token-prediction module, L head and loss.
Stages are separated by ``|`` in model order (stage s is chunk ``s // P`` of rank ``s % P``);
``x*3`` repeats a token or a group in parentheses: ``Et*3|(tt|)*29,m|L``.
"""

from __future__ import annotations

from itertools import groupby

from unjam.spec.errors import InputError

Layout = tuple[tuple[str, ...], ...]

TOKENS = "EtmL"
_MOST_SYMBOLS = 100_000


def parse_layout(text: str) -> Layout:
    """Stages of a layout string.

    Raises:
        InputError: an unknown symbol, an unbalanced parenthesis, a missing count.
    """
    symbols, rest = _sequence(text, 0, depth=0)
    if rest != len(text):
        raise InputError(f"layout {text!r}: character {rest + 1}: ')' without '('")
    stages: list[tuple[str, ...]] = []
    for part in "".join(symbols).split("|"):
        stages.append(tuple(part))
    return tuple(stages)


def _sequence(text: str, start: int, depth: int) -> tuple[list[str], int]:
    """Symbols from `start` to the closing parenthesis or the end, repetitions spelt out."""
    out: list[str] = []
    i = start
    while i < len(text) and text[i] != ")":
        symbol = text[i]
        if symbol in ", ":
            i += 1
            continue
        if symbol == "(":
            inner, i = _sequence(text, i + 1, depth + 1)
            if i >= len(text):
                raise InputError(f"layout {text!r}: '(' is never closed")
            item = "".join(inner)
        elif symbol in TOKENS or symbol == "|":
            item = symbol
        else:
            raise InputError(
                f"layout {text!r}: character {i + 1}: {symbol!r} is none of E, t, m, L, |, (, ), *"
            )
        count, i = _count(text, i + 1)
        out.append(item * count)
        if sum(len(x) for x in out) > _MOST_SYMBOLS:
            raise InputError(f"layout {text[:40]!r}: more than {_MOST_SYMBOLS} symbols")
    return out, i


def _count(text: str, i: int) -> tuple[int, int]:
    """Repetition at position `i` (1 if there is none) and the position after it."""
    if i >= len(text) or text[i] != "*":
        return 1, i
    end = i + 1
    while end < len(text) and text[end].isdigit():
        end += 1
    if end == i + 1:
        raise InputError(f"layout {text!r}: character {i + 1}: '*' needs a count")
    return min(int(text[i + 1 : end]), _MOST_SYMBOLS + 1), end


def format_layout(stages: Layout) -> str:
    """The shortest usual spelling; ``parse_layout(format_layout(x)) == x``."""
    texts = [_stage_text(x) for x in stages]
    out, position = [], 0
    for text, run in _runs(texts):
        position += run
        last = position == len(texts)  # no bar follows the last stage
        counted = run - 1 if last else run
        body = f"({text}|)*{counted}" if counted > 2 else f"{text}|" * counted
        out.append(body + (text if last else ""))
    return "".join(out)


def _runs(texts: list[str]) -> list[tuple[str, int]]:
    return [(text, len(list(members))) for text, members in groupby(texts)]


def _stage_text(stage: tuple[str, ...]) -> str:
    """One stage; runs of three and more are counted."""
    parts = []
    for token, members in groupby(stage):
        n = len(list(members))
        parts.append(f"{token}*{n}" if n > 2 else token * n)
    return "".join(parts)


def check_layout(stages: Layout, layers: int, mtp: int, ranks: int, chunks: int) -> str | None:
    """Megatron's rules for a layout; the first broken one in words, or None.

    Args:
        stages: the layout.
        layers: transformer layers of the model.
        mtp: its MTP modules.
        ranks: P.
        chunks: V.
    """
    flat = [token for stage in stages for token in stage]
    outer = flat[:1] == ["E"] and flat[-1:] == ["L"]
    if len(stages) != ranks * chunks:
        return f"has {len(stages)} stages, PP {ranks} x VPP {chunks} needs {ranks * chunks}"
    if not outer or flat.count("E") + flat.count("L") != 2:
        return "must start with the only E and end with the only L"
    if flat.count("t") != layers or flat.count("m") != mtp:
        counted = f"{flat.count('t')} t and {flat.count('m')} m"
        return f"has {counted}, the model has {layers} layers and {mtp} MTP modules"
    return _mtp_rule(stages, flat, ranks, chunks) if mtp else None


def _mtp_rule(stages: Layout, flat: list[str], ranks: int, chunks: int) -> str | None:
    homes = {i for i, stage in enumerate(stages) if "m" in stage}
    if "t" in flat[flat.index("m") :]:
        return "has an MTP module m before a layer t"
    if len(homes) > 1:
        return "spreads the MTP modules m over several stages"
    home = homes.pop()
    if home < ranks * (chunks - 1) or (ranks > 1 and home % ranks == 0):
        return "has its MTP modules m outside the last chunk, or on pipeline rank 0"
    return None
