"""`kvferry handoff`: a finished prefill goes to another node, and to another model.

Owns the list of commands. Each has a module of its own, which is imported only when one runs.
"""

from __future__ import annotations

from cyclopts import App

__all__ = ["app"]

app = App(name="handoff", help="A finished prefill goes to another node, and to another model.")

_COMMANDS = (
    ("send", "handoff_send:send", "Compute prompts here and hand their KV over: the role prefill."),
    ("receive", "handoff_receive:receive", "Take prefills over and answer behind them: the role decode."),
    ("demo", "handoff_demo:demo", "A prefill node and a decode node, over every transport and codec."),
    ("fit", "handoff_fit:fit", "Learn a map from one model's KV to another's."),
    ("apply", "handoff_fit:apply", "Carry a prefill to another model through a map, and time it."),
    ("train", "handoff_train:train", "Train a map between two families of models."),
    ("eval", "handoff_eval:evaluate", "What a target still says with a map's KV, and whether to use it."),
    ("agents", "handoff_agents:agents", "One agent reads, the other answers: text, mapped KV, fewer tokens."),
)
for _name, _place, _help in _COMMANDS:
    app.command(f"kvferry.cli.{_place}", name=_name, help=_help)
