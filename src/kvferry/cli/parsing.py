"""What is wrong with a command line, in this package's words: which option to say, and what it takes.

Owns the sentence for each error of the parser. Refuses to know commands: names and help are the parser's.
"""

from __future__ import annotations

from cyclopts import Argument, CycloptsError, MissingArgumentError, UnusedCliTokensError

__all__ = ["explain"]


def explain(error: CycloptsError) -> str:
    """One sentence that names the command, the option and what to write."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        text = _missing(error, error.argument)
    elif isinstance(error, UnusedCliTokensError):
        text = f"{' '.join(error.unused_tokens or ())!r} is too much; --help shows what it takes"
    else:
        text = str(error)
    return f"{command}: {text}" if command else text


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    words = list(error.root_input_tokens or ())
    every = list(error.app.assemble_argument_collection(parse_docstring=True)) if error.app else []
    help_of = next((one.parameter.help for one in every if one.name == argument.name), None)
    told = _first_sentence(help_of or "")
    if error.keyword is not None:
        value = _value_behind(words, error.keyword)
        instead = "write one behind it" if value is None else f"write {error.keyword}={value}"
        return f"{error.keyword} has no value{f' ({told})' if told else ''}; {instead}"
    given = {word.partition("=")[0] for word in words}
    first = f"{_shown(argument)} ({told})" if told else _shown(argument)
    others = [
        _shown(one)
        for one in every
        if one.required and _is_behind(one, argument) and not given & {*one.names}
    ]
    listed = ", ".join([first, *others[:-1]])
    return f"say {listed} and {others[-1]}" if others else f"say {listed}"


def _is_behind(one: Argument, other: Argument) -> bool:
    """Whether it is asked for by position as the other, but later, or by name as the other."""
    if one.index is None or other.index is None:
        return one.index is None and other.index is None and one.name != other.name
    return one.index > other.index


def _first_sentence(text: str) -> str:
    sentence = " ".join(text.split()).partition(". ")[0].rstrip(".")
    proper = sentence[1:2].isupper()
    return sentence if proper else sentence[:1].lower() + sentence[1:]


def _shown(argument: Argument) -> str:
    """RUN for a word that needs no option before it, as the help shows it; else --trace."""
    return argument.name if argument.index is None else argument.name.lstrip("-").upper().replace("-", "_")


def _value_behind(words: list[str], keyword: str) -> str | None:
    """The word behind the option where it was taken for another option, but is a negative amount."""
    behind = words[words.index(keyword) + 1 :][:1] if keyword in words else []
    return behind[0] if behind and behind[0][:1] == "-" and behind[0][1:2].isdigit() else None
