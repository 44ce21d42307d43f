"""The view of ``help``, editors and type checkers of keyword arguments that are passed on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import trunkline
from trunkline import aio
from trunkline._files import CopyOptions, copying
from trunkline._options import ConnectOptions, Options
from trunkline._result import Run, RunOptions, Start, StartOptions

FACES = (trunkline, aio)


@pytest.mark.parametrize(
    ("typed", "source", "takers"),
    [
        (ConnectOptions, Options, [call for face in FACES for call in (face.connect, face.Group)]),
        (StartOptions, Start, [face.Connection.start for face in FACES]),
        (RunOptions, Run, [call for face in FACES for call in (face.Connection.run, face.Group.run)]),
        (
            CopyOptions,
            copying,
            [call for face in FACES for kind in (face.Connection, face.SFTP) for call in (kind.get, kind.put)],
        ),
        (CopyOptions, copying, [call for face in FACES for call in (face.Group.get, face.Group.copy)]),
    ],
)
def test_every_option_is_shown_with_its_default(
    typed: type[Any], source: Callable[..., Any], takers: list[Callable[..., Any]]
) -> None:
    defaults = inspect.signature(source).parameters
    options = {name: each.default for name, each in defaults.items() if name not in ("command", "encoding")}
    assert options.keys() == typed.__annotations__.keys()
    for taker in takers:
        shown = inspect.signature(taker).parameters
        assert {name: shown[name].default for name in options} == options
        assert {shown[name].kind for name in options} == {inspect.Parameter.KEYWORD_ONLY}
        assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())


def test_an_option_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'usr'"):
        trunkline.connect("box1", usr="me")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'usr'"):
        aio.Group("box1", usr="me")  # type: ignore[call-arg]
